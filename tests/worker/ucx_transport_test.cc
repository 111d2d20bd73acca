#include "worker/ucx_transport.h"

#include <gmock/gmock.h>

#include "tests/worker/collective_backend_conformance.h"
#include "tests/worker/transport_conformance.h"
#include "worker/host_backend.h"
#include "worker/routed_transport.h"
#include "worker/shm_transport.h"
#include "worker/ucx_factory.h"

namespace coordd {
namespace {

using testing::HasSubstr;

absl::StatusOr<std::unique_ptr<Transport>> Over(const UcxTransportOptions& options) {
  return TryMakeUcxTransport(options, Clock::Real());
}

std::unique_ptr<Transport> OverLoopback() {
  return Over({.local_address = "127.0.0.1", .environment = {}, .ports = {}}).value();
}

std::unique_ptr<Transport> Routed() {
  return std::make_unique<RoutedTransport>(std::make_unique<ShmTransport>(), OverLoopback());
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

INSTANTIATE_TEST_SUITE_P(Ucx, TransportConformance,
                         testing::Values(TransportOf("Loopback", OverLoopback),
                                         TransportOf("Routed", Routed)),
                         [](const auto& info) { return NameOf(info); });

INSTANTIATE_TEST_SUITE_P(HostOverUcx, CollectiveBackendConformance,
                         testing::Values(BackendOf("Loopback", OverLoopback),
                                         BackendOf("Routed", Routed)),
                         [](const auto& info) { return NameOf(info); });

TEST(UcxTransport, RefusesAnAddressThatNoInterfaceHas) {
  InMemoryStore store;
  const std::unique_ptr<Transport> transport =
      Over({.local_address = "192.0.2.1", .environment = {}, .ports = {}}).value();
  const absl::Status status =
      transport->Connect(GroupLayout::OneNode(Rank{0}, 2), store, absl::InfiniteFuture());
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("192.0.2.1"));
}

}  // namespace
}  // namespace coordd
