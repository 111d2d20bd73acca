// Who may ask coordd's HTTP port where it listens beyond loopback: whoever has the token, or a
// certificate that lets see all jobs. (io)
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "common/net/http_server.h"

namespace coordd {

class ServerCertificates;
class TlsStream;
class WatchedToken;

// Makes the server of `options` speak TLS and refuse everybody else; but /healthz and /readyz,
// which say nothing of jobs, are everybody's, for probes of machines. `certificates` outlives that
// server. `token`: what is sent as "Authorization: Bearer TOKEN"; null: there is none.
void GuardHttp(ServerCertificates& certificates, std::shared_ptr<const WatchedToken> token,
               HttpServerOptions& options);

// UNAUTHENTICATED, PERMISSION_DENIED: in a sentence why not. `stream`: the client's.
absl::Status MayAskHttp(const TlsStream& stream, const HttpRequest& request,
                        const WatchedToken* token);

}  // namespace coordd
