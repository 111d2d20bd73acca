#include "worker/runtime/transport_factory.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/transport/routed_transport.h"
#include "worker/transport/shm/shm_transport.h"
#include "worker/transport/tcp/tcp_transport.h"
#include "worker/transport/ucx/ucx_factory.h"

namespace coordd {

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
  if (options.choice == TransportChoice::kTcp) {
    return std::make_unique<RoutedTransport>(
        std::make_unique<ShmTransport>(clock),
        std::make_unique<TcpTransport>(
            TcpTransportOptions{options.local_address, options.ports, options.encrypts}, clock));
  }
  const UcxTransportOptions ucx_options{options.local_address, options.environment, options.ports};
  COORDD_ASSIGN_OR_RETURN(std::unique_ptr<Transport> ucx, TryMakeUcxTransport(ucx_options, clock));
  if (options.choice == TransportChoice::kUcx) return ucx;
  return std::make_unique<RoutedTransport>(std::make_unique<ShmTransport>(clock), std::move(ucx));
}

}  // namespace coordd
