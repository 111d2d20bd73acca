#include "tests/worker/support/in_process_transport.h"

#include <gmock/gmock.h>

#include "tests/worker/support/transport_conformance.h"

namespace coordd {
namespace {

using testing::HasSubstr;

INSTANTIATE_TEST_SUITE_P(InProcess, TransportConformance,
                         testing::Values(TransportCase{
                             .name = "Threads",
                             .new_group =
                                 [](int32_t world_size) {
                                   auto network = std::make_shared<InProcessNetwork>(world_size);
                                   return [network]() -> std::unique_ptr<Transport> {
                                     return std::make_unique<InProcessTransport>(*network);
                                   };
                                 }}),
                         [](const auto& info) { return info.param.name; });

TEST(InProcessTransport, NamesTheRanksThatDidNotShowUp) {
  InProcessNetwork network(3);
  InMemoryStore store;
  InProcessTransport transport(network);
  const absl::Status status = transport.Connect(GroupLayout::OneNode(Rank{1}, 3), store,
                                                Clock::Real().Now() + absl::Milliseconds(1));
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("ranks 0, 2 did not show up"));
}

}  // namespace
}  // namespace coordd
