// coordd as an object: everything that the program is, without its command line. (io)
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/grpc/tls.h"
#include "common/net/address.h"
#include "server/model/server_options.h"
#include "server/service/audit_log.h"
#include "server/store/state_place.h"

namespace prometheus {
class Registry;
}

namespace coordd {

struct CoordServerOptions {
  ServerOptions decisions;
  HostPort listen = {"127.0.0.1", 29650};  // gRPC
  std::optional<PortRange> ports;  // where port 0 picks from, in this order; absent: anywhere
  std::optional<HostPort> http = HostPort{"127.0.0.1", 29651};  // absent: off
  TlsFiles tls;                 // of gRPC, and of HTTP beyond loopback
  bool insecure = false;        // listen beyond loopback without TLS all the same
  bool insecure_http = false;   // HTTP beyond loopback without TLS all the same
  std::string http_token_file;  // who has it may ask HTTP beyond loopback; empty: none
  std::string connection_file;  // written once ready, removed at the end; empty: none
  AuditOptions audit;
  bool grpc_reflection = false;      // tell every client what there is to call
  bool any_metrics_address = false;  // of workers, not only their own (MetricsAddressRule)
  std::string prometheus_file_sd;    // kept up to date with the members; empty: none
  StatePlace store;                  // what is remembered beyond the end of the process
  StateStoreOptions state;           // owner and new_cluster_id are filled in where they are empty

  // HTTP has TLS beyond loopback, where there is any.
  bool HttpHasTls() const;
  // INVALID_ARGUMENT: names the option, what was given, what is expected and why.
  absl::Status Validate() const;
};

// Thread-safe but for Stop and the destructor, which its owner calls.
class CoordServer {
 public:
  // Listens and serves when it returns. `clock` and `registry` outlive it. INVALID_ARGUMENT as
  // Validate; UNAVAILABLE: an address cannot be had, or a file cannot be written. OpenState's codes
  // for the state, which it opens unless it is given.
  static absl::StatusOr<std::unique_ptr<CoordServer>> Start(const CoordServerOptions& options,
                                                            Clock& clock,
                                                            prometheus::Registry& registry);
  static absl::StatusOr<std::unique_ptr<CoordServer>> Start(const CoordServerOptions& options,
                                                            OpenedState state, Clock& clock,
                                                            prometheus::Registry& registry);
  static absl::StatusOr<OpenedState> Open(const CoordServerOptions& options, Clock& clock);
  virtual ~CoordServer() = default;  // Stop

  // With the ports that were picked.
  virtual HostPort listen_address() const = 0;
  virtual std::optional<HostPort> http_address() const = 0;
  // Reads the certificates again, soon; what is open stays.
  virtual void Reload() = 0;
  // Streams of workers that are open.
  virtual size_t sessions() const = 0;
  // Raised when another coordd has taken the state over: its owner stops this one then.
  virtual const StateLoss& state_loss() const = 0;

  // Tells the workers why, lets what is written go out, closes the ports: within 2 s. Idempotent.
  // `resume_within`: it is started again on its state by then, so jobs go on; 0: they end.
  virtual void Stop(const std::string& reason, absl::Duration resume_within) = 0;
  void Stop(const std::string& reason) { Stop(reason, absl::ZeroDuration()); }
};

}  // namespace coordd
