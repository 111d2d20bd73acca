// Who may ask coordd's HTTP port where it listens beyond loopback: whoever has the token, or a
// certificate that lets see all jobs. (io)
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/net/http_server.h"
#include "server/job/wrong_tokens.h"

namespace coordd {

class ServerCertificates;
class ServerMetrics;
class TlsStream;
class WatchedToken;

// Makes the server of `options` speak TLS and refuse everybody else; but /healthz and /readyz,
// which say nothing of jobs, are everybody's, for probes of machines. `certificates` outlives that
// server. `token`: what is sent as "Authorization: Bearer TOKEN"; null: there is none.
// `clock` outlives it, too.
void GuardHttp(ServerCertificates& certificates, std::shared_ptr<const WatchedToken> token,
               Clock& clock, HttpServerOptions& options);

// Makes the server of `options` answer /healthz and /readyz before all else, and log, not more
// often than LogLimit lets it, and count whom it refuses. `metrics`, null: nothing is counted, and
// `clock` outlive that server.
void WatchHttp(ServerMetrics* metrics, Clock& clock, HttpServerOptions& options);

// "address_full": the label of a metric.
absl::string_view HttpRefusalName(HttpRefusal why);

// Touched by one thread. Who brings the token of an HTTP port; an address that brings wrong ones
// waits between them, as for a job's.
class HttpTokens {
 public:
  explicit HttpTokens(std::shared_ptr<const WatchedToken> token) : token_(std::move(token)) {}

  // `from`: PeerAddress::block. UNAUTHENTICATED: it is another. UNAVAILABLE: it was not looked at,
  // after so many wrong ones of this address.
  absl::Status Check(const std::string& from, absl::string_view brought, absl::Time now);

 private:
  const std::shared_ptr<const WatchedToken> token_;
  WrongTokens wrong_;
};

}  // namespace coordd
