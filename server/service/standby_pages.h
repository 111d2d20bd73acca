// What a coordd that stands by says over HTTP: that it lives, and does not lead. (io)
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/grpc/server_certificates.h"
#include "common/net/http_server.h"
#include "server/service/coord_server.h"

namespace coordd {

// Thread-safe. Serves where the coordd would that it becomes, which has that address once this is
// destroyed:
//   /healthz  200
//   /readyz   503, with the reason that was told last
//   /metrics  coordd_standby 1, to who may ask a leader for metrics
class StandbyPages {
 public:
  // UNAVAILABLE: the address cannot be had. INVALID_ARGUMENT: certificates or the token's file
  // cannot be used. REQUIRES: options.http.
  static absl::StatusOr<std::unique_ptr<StandbyPages>> Start(const CoordServerOptions& options);

  void Tell(const std::string& why);
  HostPort address() const { return http_->address(); }

 private:
  StandbyPages() = default;
  std::string why() const;

  // Guarded by mu_.
  mutable Mutex mu_;
  std::string why_ ABSL_GUARDED_BY(mu_);

  // Constant after Start. The server ends before what it uses.
  std::unique_ptr<ServerCertificates> certificates_;  // null: no TLS
  std::unique_ptr<HttpServer> http_;
};

}  // namespace coordd
