// gRPC's and protobuf's own lines, which are ours to word. (io)
#pragma once

#include <string>

#include "common/base/environment.h"

namespace coordd {

// Makes gRPC's lines ours, at level debug, from now on and for the whole process; calling it again
// does nothing. So are protobuf's, which strangers cause with a message that is none, at level
// warning, as often as LogLimit lets them.
void RouteGrpcLog();
// Routes gRPC's log in a client, unless its user has asked gRPC to speak (GRPC_VERBOSITY,
// GRPC_TRACE); protobuf's in any case.
void RouteGrpcLogUnlessWanted(const Environment& environment);

// What OpenSSL says of a handshake ("error:0A000086:SSL routines::certificate verify failed" and
// its like), in words for people.
std::string HandshakeFailureText(const std::string& openssl);

}  // namespace coordd
