// gRPC's own lines, which are ours to word. (io)
#pragma once

#include <functional>
#include <string>

#include "common/base/environment.h"

namespace coordd {

// From now on they are lines of ours at level debug. Once for the process; again does nothing.
void RouteGrpcLog();
// The same for a client, unless its user has asked gRPC to speak (GRPC_VERBOSITY, GRPC_TRACE).
void RouteGrpcLogUnlessWanted(const Environment& environment);

// Called for each TLS handshake that fails for what the other side presents, with what OpenSSL says
// of it, on a thread of gRPC's, which must not be held up. gRPC says nowhere whose it was. One at a
// time; nullptr: nobody.
void OnFailedHandshake(std::function<void(const std::string& why)> call);

// For people: "error:0A000086:SSL routines::certificate verify failed" and its like.
std::string HandshakeFailureText(const std::string& openssl);

}  // namespace coordd
