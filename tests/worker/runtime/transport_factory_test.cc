#include "worker/runtime/transport_factory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "common/base/dynamic_library.h"
#include "common/machine/ucx_library.h"

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

// Whether there is UCX or not.
TEST(TransportFactory, TakesTcpBetweenNodesWhenAsked) {
  TransportFactoryOptions options;
  options.choice = TransportChoice::kTcp;
  options.environment["COORDD_UCX_LIBRARY"] = "/nowhere/libucp.so.0";
  const auto between = MakeTransport(kTwoNodes, options);
  ASSERT_TRUE(between.ok()) << between.status();
  EXPECT_EQ((*between)->name(), "routed");
  EXPECT_EQ((*MakeTransport(kOneNode, options))->name(), "shm");
}

TEST(TransportFactory, SaysWhichUcxCannotBeOpened) {
  TransportFactoryOptions options;
  options.environment["COORDD_UCX_LIBRARY"] = "/nowhere/libucp.so.0";
  const absl::Status status = MakeTransport(kTwoNodes, options).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  const std::string message(status.message());
  if (message.find("COORDD_WITH_UCX=ON") != std::string::npos) GTEST_SKIP() << message;
  EXPECT_THAT(message, HasSubstr("COORDD_UCX_LIBRARY=/nowhere/libucp.so.0"));
}

// In a process of its own: the other tests open it.
TEST(TransportFactoryDeathTest, OpensNoUcxForRanksOfOneNode) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        const bool made = MakeTransport(kOneNode, {}).ok();
        const bool loaded = DynamicLibrary::OpenLoaded(kUcxLibrary).ok();
        std::exit(made && !loaded ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
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
