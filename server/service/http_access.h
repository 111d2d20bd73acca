// Who may ask coordd's HTTP port where it listens beyond loopback: whoever has the token, or a
// certificate that lets see all jobs. (io)
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/clock.h"
#include "common/net/http_server.h"

namespace coordd {

class ServerCertificates;
class ServerMetrics;
class TlsStream;
class WatchedToken;

// Makes the server of `options` speak TLS and refuse everybody else; but /healthz and /readyz,
// which say nothing of jobs, are everybody's, for probes of machines. `certificates` outlives that
// server. `token`: what is sent as "Authorization: Bearer TOKEN"; null: there is none.
void GuardHttp(ServerCertificates& certificates, std::shared_ptr<const WatchedToken> token,
               HttpServerOptions& options);

// Makes the server of `options` answer /healthz and /readyz before all else, and log, not more
// often than LogLimit lets it, and count whom it refuses. `metrics`, null: nothing is counted, and
// `clock` outlive that server.
void WatchHttp(ServerMetrics* metrics, Clock& clock, HttpServerOptions& options);

// "address_full": the label of a metric.
absl::string_view HttpRefusalName(HttpRefusal why);

// UNAUTHENTICATED, PERMISSION_DENIED: in a sentence why not. `stream`: the client's.
absl::Status MayAskHttp(const TlsStream& stream, const HttpRequest& request,
                        const WatchedToken* token);

}  // namespace coordd
