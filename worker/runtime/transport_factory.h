// Chooses the transport of a generation. (io)
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/environment.h"
#include "common/net/address.h"
#include "worker/api/worker_options.h"
#include "worker/interfaces/edge_report.h"
#include "worker/interfaces/group_layout.h"
#include "worker/interfaces/transport.h"

namespace coordd {

struct TransportFactoryOptions {
  TransportChoice choice = TransportChoice::kAuto;
  std::string local_address;       // UcxTransportOptions::local_address, TcpTransportOptions's
  Environment environment;         // UcxTransportOptions::environment
  std::optional<PortRange> ports;  // UcxTransportOptions::ports, TcpTransportOptions's
  bool encrypts = false;           // TcpTransportOptions::encrypts
  int32_t connections = 1;         // TcpTransportOptions::connections
  std::shared_ptr<std::atomic<int64_t>> refused = nullptr;  // TcpTransportOptions::turned_away
  // Whether this machine has RDMA: ActiveRdmaPorts.
  bool has_rdma = false;
  std::shared_ptr<EdgeReport> edges;  // AgreedTransport::Told::report
};

// Not connected yet. Inside the nodes shared memory, whatever is chosen. Between them, kAuto: UCX
// over RDMA, without its TCP, where both ranks have that, and else TCP of coordd's own; kTcp: never
// UCX; kUcx: UCX with all that it has, and one warning of what that trusts. `clock` and, between
// nodes, the store given to Connect outlive the transport. A job of one rank needs none: use
// LoopbackBackend.
// FAILED_PRECONDITION: this build or this layout has no such transport; says what to do.
absl::StatusOr<std::unique_ptr<Transport>> MakeTransport(const GroupLayout& layout,
                                                         const TransportFactoryOptions& options,
                                                         Clock& clock = Clock::Real());

}  // namespace coordd
