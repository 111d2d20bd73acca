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

TEST(TransportFactory, RefusesSharedMemoryBetweenNodes) {
  TransportFactoryOptions options;
  options.choice = TransportChoice::kShm;
  const absl::Status status = MakeTransport(kTwoNodes, options).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("2 nodes"));
}

// Whether there is UCX or not: it is not opened without RDMA, nor where all is to be encrypted.
TEST(TransportFactory, TakesTcpBetweenNodes) {
  TransportFactoryOptions options;
  options.environment["COORDD_UCX_LIBRARY"] = "/nowhere/libucp.so.0";
  for (const TransportChoice choice :
       {TransportChoice::kAuto, TransportChoice::kMapped, TransportChoice::kTcp}) {
    options.choice = choice;
    for (const bool encrypts : {false, true}) {
      options.encrypts = encrypts;
      options.has_rdma = encrypts || choice == TransportChoice::kTcp;
      testing::internal::CaptureStderr();
      const auto between = MakeTransport(kTwoNodes, options);
      EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
      ASSERT_TRUE(between.ok()) << between.status();
      EXPECT_EQ((*between)->name(), "routed");
      EXPECT_EQ((*MakeTransport(kOneNode, options))->name(), "shm");
    }
  }
}

TEST(TransportFactory, SaysWhyItTakesTcpWhereThereIsRdma) {
  TransportFactoryOptions options;
  options.has_rdma = true;
  options.environment["COORDD_UCX_LIBRARY"] = "/nowhere/libucp.so.0";
  testing::internal::CaptureStderr();
  const auto between = MakeTransport(kTwoNodes, options);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(between.ok()) << between.status();
  EXPECT_THAT(log, HasSubstr("there is RDMA, and TCP is used between nodes"));
}

TEST(TransportFactory, SaysWhichUcxCannotBeOpened) {
  TransportFactoryOptions options;
  options.choice = TransportChoice::kUcx;
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

// In a process of its own: the other tests ask for it, too.
TEST(TransportFactoryDeathTest, SaysOnceWhatUcxTrusts) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        TransportFactoryOptions options;
        options.choice = TransportChoice::kUcx;
        for (int i = 0; i < 3; ++i) (void)MakeTransport(kTwoNodes, options);
        std::exit(0);
      },
      testing::ExitedWithCode(0),
      testing::AllOf(HasSubstr("UCX believes whoever reaches its ports"),
                     testing::Not(testing::ContainsRegex("UCX believes(.|\n)*UCX believes"))));
}

// The variable is about what goes between nodes.
TEST(TransportFactory, TakesSharedMemoryOnOneNodeWhateverIsAskedFor) {
  TransportFactoryOptions options;
  options.environment["COORDD_UCX_LIBRARY"] = "/nowhere/libucp.so.0";
  for (const TransportChoice choice :
       {TransportChoice::kAuto, TransportChoice::kMapped, TransportChoice::kShm,
        TransportChoice::kTcp, TransportChoice::kUcx}) {
    options.choice = choice;
    testing::internal::CaptureStderr();
    const auto transport = MakeTransport(kOneNode, options);
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
    ASSERT_TRUE(transport.ok()) << transport.status();
    EXPECT_EQ((*transport)->name(), "shm");
  }
}

TEST(TransportFactory, TakesUcxBetweenNodesWhenAsked) {
  TransportFactoryOptions options;
  options.choice = TransportChoice::kUcx;
  const auto transport = MakeTransport(kTwoNodes, options);
  if (transport.ok()) {
    EXPECT_EQ((*transport)->name(), "routed");
  } else {
    EXPECT_TRUE(absl::IsFailedPrecondition(transport.status())) << transport.status();
  }
}

}  // namespace
}  // namespace coordd
