// A relay as an object: what the program coordd-relay is, without its command line. (io)
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/grpc/tls.h"
#include "common/net/address.h"
#include "relay/relay_state.h"
#include "relay/worker_patience.h"

namespace coordd {

struct RelayServerOptions {
  // unix:/a/path. Who may open that file may speak through the relay: the program makes it its
  // user's alone. coordd still asks each worker for the job's token.
  std::string listen;
  std::vector<HostPort> coordinators;  // of one coordd after the other; at least one
  TlsFiles tls;                        // to coordd
  std::string hostname;                // for people
  // Where the metrics of the node's workers are served as one target's; an empty host: the address
  // that packets to coordd leave from. Absent: each worker serves its own.
  std::optional<HostPort> metrics = {};
  std::optional<PortRange> ports = {};  // of which port 0 picks one
  RelayOptions decisions;
  WorkerPatience patience = {};

  // INVALID_ARGUMENT: names the option, what was given and what is expected.
  absl::Status Validate() const;
};

// One thread owns it.
class RelayServer {
 public:
  // Takes workers when it returns. `clock` outlives it. INVALID_ARGUMENT as Validate; UNAVAILABLE:
  // the address cannot be had.
  static absl::StatusOr<std::unique_ptr<RelayServer>> Start(const RelayServerOptions& options,
                                                            Clock& clock);
  virtual ~RelayServer() = default;  // ends all streams, with UNAVAILABLE

  // For people: whom it serves, where, and to which coordd it speaks, how.
  virtual std::string Description() const = 0;
};

}  // namespace coordd
