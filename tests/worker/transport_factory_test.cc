#include "worker/transport_factory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace coordd {
namespace {

using testing::HasSubstr;

const GroupLayout kOneNode = GroupLayout::OneNode(Rank{0}, 4);
const GroupLayout kTwoNodes(Rank{0}, {{2, 2}});

TEST(TransportFactory, TakesSharedMemoryOnOneNode) {
  const auto transport = MakeTransport(kOneNode, {});
  ASSERT_TRUE(transport.ok());
  EXPECT_EQ((*transport)->name(), "shm");
}

TEST(TransportFactory, RefusesSharedMemoryBetweenNodes) {
  TransportFactoryOptions options;
  options.choice = TransportChoice::kShm;
  const absl::Status status = MakeTransport(kTwoNodes, options).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("2 nodes"));
}

TEST(TransportFactory, RoutesBetweenNodesOrSaysWhatIsMissing) {
  const auto transport = MakeTransport(kTwoNodes, {});
  if (transport.ok()) {
    EXPECT_EQ((*transport)->name(), "routed");
  } else {
    EXPECT_TRUE(absl::IsFailedPrecondition(transport.status())) << transport.status();
    EXPECT_THAT(std::string(transport.status().message()), HasSubstr("COORDD_WITH_UCX=ON"));
  }
}

TEST(TransportFactory, TakesUcxEverywhereWhenAsked) {
  TransportFactoryOptions options;
  options.choice = TransportChoice::kUcx;
  const auto transport = MakeTransport(kOneNode, options);
  if (transport.ok()) {
    EXPECT_EQ((*transport)->name(), "ucx");
  } else {
    EXPECT_TRUE(absl::IsFailedPrecondition(transport.status())) << transport.status();
  }
}

}  // namespace
}  // namespace coordd
