#include "worker/runtime/transport_factory.h"

#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "worker/transport/agreed_transport.h"
#include "worker/transport/routed_transport.h"
#include "worker/transport/shm/shm_transport.h"
#include "worker/transport/tcp/tcp_transport.h"
#include "worker/transport/ucx/ucx_factory.h"

namespace coordd {
namespace {

void WarnOfTrust() {
  static std::atomic<bool> warned = false;
  if (warned.exchange(true)) return;
  COORDD_LOG(kWarning,
             "COORDD_TRANSPORT=ucx: over TCP UCX believes whoever reaches its ports, who can end "
             "this process or write into its memory; auto takes coordd's own TCP where there is no "
             "RDMA, which believes ranks of the job and nobody else");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> MakeTransport(const GroupLayout& layout,
                                                         const TransportFactoryOptions& options,
                                                         Clock& clock) {
  const bool one_node = layout.num_nodes() == 1;
  if (options.choice == TransportChoice::kShm && !one_node) {
    return absl::FailedPreconditionError(
        absl::StrCat("transport shm was asked for, but the ranks are on ", layout.num_nodes(),
                     " nodes: use auto, or run them on one node"));
  }
  if (one_node && options.choice != TransportChoice::kUcx)
    return std::make_unique<ShmTransport>(clock);
  UcxTransportOptions ucx{options.local_address, options.environment, options.ports};
  if (options.choice == TransportChoice::kUcx) {
    if (!one_node) WarnOfTrust();
    return TryMakeUcxTransport(ucx, clock);
  }
  std::unique_ptr<Transport> rdma;
  if (options.choice != TransportChoice::kTcp && options.has_rdma && !options.encrypts) {
    ucx.only_rdma = true;
    absl::StatusOr<std::unique_ptr<Transport>> made = TryMakeUcxTransport(ucx, clock);
    if (made.ok()) {
      rdma = *std::move(made);
    } else {
      COORDD_LOG(kWarning,
                 "there is RDMA, and TCP is used between nodes: ", made.status().message());
    }
  }
  auto tcp = std::make_unique<TcpTransport>(
      TcpTransportOptions{options.local_address, options.ports, options.encrypts, options.refused},
      clock);
  return std::make_unique<RoutedTransport>(
      std::make_unique<ShmTransport>(clock),
      std::make_unique<AgreedTransport>(std::move(tcp), std::move(rdma)));
}

}  // namespace coordd
