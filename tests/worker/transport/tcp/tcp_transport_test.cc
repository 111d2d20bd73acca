#include "worker/transport/tcp/tcp_transport.h"

#include <gmock/gmock.h>

#include <memory>
#include <string>
#include <utility>

#include "tests/worker/support/collective_backend_conformance.h"
#include "tests/worker/support/transport_conformance.h"
#include "worker/host/host_backend.h"
#include "worker/transport/agreed_transport.h"
#include "worker/transport/routed_transport.h"
#include "worker/transport/shm/shm_transport.h"

namespace coordd {
namespace {

std::unique_ptr<Transport> InPlain() {
  return std::make_unique<TcpTransport>(
      TcpTransportOptions{.local_address = "127.0.0.1", .ports = {}, .encrypts = false});
}

std::unique_ptr<Transport> Encrypted() {
  return std::make_unique<TcpTransport>(
      TcpTransportOptions{.local_address = "127.0.0.1", .ports = {}, .encrypts = true});
}

std::unique_ptr<Transport> Routed() {
  return std::make_unique<RoutedTransport>(std::make_unique<ShmTransport>(), InPlain());
}

std::unique_ptr<Transport> Agreed() {
  return std::make_unique<AgreedTransport>(InPlain(), nullptr);
}

// Nodes of two ranks, and a node of one at the end of an odd world.
GroupLayout Pairs(Rank self, int32_t world_size) {
  std::vector<NodeRun> nodes;
  if (world_size > 1) nodes.push_back({world_size / 2, 2});
  if (world_size % 2 == 1) nodes.push_back({1, 1});
  return GroupLayout(self, nodes);
}

TransportCase TransportOf(std::string name, std::unique_ptr<Transport> (*make)()) {
  return {.name = std::move(name), .new_group = [make](int32_t) { return make; }, .layout = Pairs};
}

BackendCase BackendOf(std::string name, std::unique_ptr<Transport> (*make)()) {
  return {.name = std::move(name),
          .new_group =
              [make](int32_t) {
                return [make]() -> std::unique_ptr<CollectiveBackend> {
                  return std::make_unique<HostBackend>(make());
                };
              },
          .layout = Pairs};
}

std::string NameOf(const auto& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Tcp, TransportConformance,
                         testing::Values(TransportOf("InPlain", InPlain),
                                         TransportOf("Encrypted", Encrypted),
                                         TransportOf("Agreed", Agreed),
                                         TransportOf("Routed", Routed)),
                         [](const auto& info) { return NameOf(info); });

INSTANTIATE_TEST_SUITE_P(HostOverTcp, CollectiveBackendConformance,
                         testing::Values(BackendOf("InPlain", InPlain),
                                         BackendOf("Encrypted", Encrypted),
                                         BackendOf("Routed", Routed)),
                         [](const auto& info) { return NameOf(info); });

}  // namespace
}  // namespace coordd
