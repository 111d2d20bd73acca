#include "worker/runtime/backend_factory.h"

#include <memory>
#include <utility>

#include "common/base/status_macros.h"
#include "common/machine/gpu_network.h"
#include "worker/host/checking_backend.h"
#include "worker/host/host_backend.h"
#include "worker/host/loopback_backend.h"
#include "worker/runtime/transport_factory.h"

namespace coordd {

absl::StatusOr<std::unique_ptr<CollectiveBackend>> MakeBackend(
    const WorkerOptions& options, const GroupLayout& layout, Clock& clock,
    std::shared_ptr<std::atomic<int64_t>> refused) {
  if (layout.size() == 1) return std::make_unique<LoopbackBackend>();
  TransportFactoryOptions transport_options;
  transport_options.choice = options.transport;
  transport_options.environment = options.ucx_environment;
  transport_options.ports = options.ports;
  transport_options.encrypts = options.encrypt_data;
  transport_options.connections = options.tcp_connections;
  transport_options.refused = std::move(refused);
  transport_options.has_rdma = layout.num_nodes() > 1 && !ActiveRdmaPorts().empty();
  transport_options.edges = std::make_shared<EdgeReport>();
  // The interface that reaches coordd is one that the other nodes reach too. Without a route there
  // would be no membership; should the name not resolve any more, UCX chooses by itself.
  transport_options.local_address = LocalAddressTowards(options.coordinator).value_or("");
  COORDD_ASSIGN_OR_RETURN(std::unique_ptr<Transport> transport,
                          MakeTransport(layout, transport_options, clock));
  std::unique_ptr<NodeArena> arena;
  const bool has_neighbours = layout.ranks_on(layout.node_of(layout.self())) > 1;
  const bool required = options.transport == TransportChoice::kMapped;
  const bool maps = options.transport != TransportChoice::kShm;
  if (maps && has_neighbours)
    arena = std::make_unique<NodeArena>(NodeArenaOptions{.required = required}, clock);
  HostBackendOptions host_options;
  host_options.algorithm = options.host_algorithm;
  host_options.edges = transport_options.edges;
  auto host = std::make_unique<HostBackend>(std::move(transport), std::move(host_options),
                                            std::move(arena));
  if (!options.check_results.has_value()) return host;
  return std::make_unique<CheckingBackend>(std::move(host),
                                           CheckingOptions{.tolerance = *options.check_results});
}

}  // namespace coordd
