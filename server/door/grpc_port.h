// coordd's gRPC server, and who gets to it. (io)
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/net/address.h"
#include "coordd/v1/admin.pb.h"

namespace grpc {
class Service;
}

namespace coordd {

class ConnectionTable;
class ReadBytes;
class ServerCertificates;
class ServerMetrics;

struct GrpcPortOptions {
  HostPort listen;
  std::optional<PortRange> ports;  // where port 0 picks from, in this order; absent: anywhere
  ServerCertificates* certificates = nullptr;  // outlives the port; null: no TLS
  bool reflection = false;  // gRPC's own service that tells what there is to call
};

// Thread-safe but for Shutdown and the destructor, which its owner calls.
class GrpcPort {
 public:
  // Serves when it returns. `services`, which count in `read` what they read, `read`,
  // `connections`, in which they find who calls, `clock` and `metrics` outlive it. UNAVAILABLE: the
  // address cannot be had.
  static absl::StatusOr<std::unique_ptr<GrpcPort>> Open(const GrpcPortOptions& options,
                                                        const std::vector<grpc::Service*>& services,
                                                        ReadBytes& read,
                                                        ConnectionTable& connections, Clock& clock,
                                                        ServerMetrics& metrics);
  virtual ~GrpcPort() = default;

  virtual HostPort address() const = 0;  // with the port that was picked
  virtual size_t connections() = 0;      // that are open
  virtual size_t connections_max() const = 0;
  virtual v1::Connections Describe() = 0;  // these, and who was refused
  // Whether a client gets in: one of our own is made, at most once a second. UNAVAILABLE: why not.
  virtual absl::Status Answers() = 0;

  virtual void StopHealthCheck() = 0;  // gRPC's health service says so from now on
  // Lets in nobody else; ends what is open after `grace`.
  virtual void Shutdown(absl::Duration grace) = 0;
};

// Of HTTP, so that gRPC's connections and these stay below the limit of descriptors together.
size_t HttpConnectionsMax();

}  // namespace coordd
