#include "worker/runtime/transport_factory.h"

#include <atomic>
#include <string>
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

using MaybeTransport = absl::StatusOr<std::unique_ptr<Transport>>;

// RDMA, where this rank has it and wants it; else nullptr.
std::unique_ptr<Transport> MakeRdma(const TransportFactoryOptions& options, Clock& clock) {
  if (options.choice == TransportChoice::kTcp || !options.has_rdma || options.encrypts)
    return nullptr;
  MaybeTransport made = TryMakeUcxTransport(
      {options.local_address, options.environment, options.ports, /*only_rdma=*/true}, clock);
  if (made.ok()) return *std::move(made);
  COORDD_LOG(kWarning, "there is RDMA, and TCP is used between nodes: ", made.status().message());
  return nullptr;
}

MaybeTransport MakeBetweenNodes(const TransportFactoryOptions& options, Clock& clock) {
  AgreedTransport::Told told{options.edges, "", ""};
  if (options.choice == TransportChoice::kUcx) {
    WarnOfTrust();
    COORDD_ASSIGN_OR_RETURN(
        std::unique_ptr<Transport> ucx,
        TryMakeUcxTransport({options.local_address, options.environment, options.ports}, clock));
    told.everywhere = std::string(kOverUcx);
    return std::make_unique<AgreedTransport>(std::move(ucx), nullptr, std::move(told));
  }
  told.everywhere = std::string(options.encrypts ? kOverTcpEncrypted : kOverTcp);
  if (options.connections > 1) absl::StrAppend(&told.everywhere, " x", options.connections);
  told.preferred = std::string(kOverUcxRdma);
  auto tcp = std::make_unique<TcpTransport>(
      TcpTransportOptions{options.local_address, options.ports, options.encrypts,
                          options.connections, options.refused},
      clock);
  return std::make_unique<AgreedTransport>(std::move(tcp), MakeRdma(options, clock),
                                           std::move(told));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> MakeTransport(const GroupLayout& layout,
                                                         const TransportFactoryOptions& options,
                                                         Clock& clock) {
  auto within_node = std::make_unique<ShmTransport>(clock);
  if (layout.num_nodes() == 1) return MaybeTransport(std::move(within_node));
  if (options.choice == TransportChoice::kShm) {
    return absl::FailedPreconditionError(
        absl::StrCat("transport shm was asked for, but the ranks are on ", layout.num_nodes(),
                     " nodes: use auto, or run them on one node"));
  }
  COORDD_ASSIGN_OR_RETURN(std::unique_ptr<Transport> between_nodes,
                          MakeBetweenNodes(options, clock));
  return std::make_unique<RoutedTransport>(std::move(within_node), std::move(between_nodes));
}

}  // namespace coordd
