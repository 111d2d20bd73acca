// The parts of DevicePlane: its queue, its thread, what ranks agree on, and what coordd is told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "common/protocol/store_memory.h"
#include "tests/support/hang_limit.h"
#include "tests/support/status_matchers.h"
#include "tests/worker/support/closed_store.h"
#include "worker/gpu/plane/called_queue.h"
#include "worker/gpu/plane/device_agreement.h"
#include "worker/gpu/plane/device_agreements.h"
#include "worker/gpu/plane/device_queue.h"
#include "worker/gpu/plane/device_report.h"
#include "worker/gpu/plane/lazy_thread.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::unique_ptr<BatchJob> PlaneBatch(int32_t lane, int64_t sequence) {
  TensorSpec spec;
  spec.name = "a";
  spec.kind = CollectiveKind::kBarrier;
  std::vector<TensorJob> tensors(1);
  tensors[0].work = std::make_shared<Work>(std::move(spec), Clock::Real());
  return std::make_unique<BatchJob>(BatchContext{}, LaneId{lane}, sequence, std::move(tensors));
}

class DeviceQueueTest : public ::testing::Test {
 protected:
  using Next = DeviceQueue::Next;

  // Says `what` of each entry; the sequences that were asked about.
  std::vector<int64_t> Advance(Next what) {
    std::vector<int64_t> asked;
    queue_.Advance(
        [&](DeviceQueue::Entry& entry, const DeviceQueue::Before& before) {
          asked.push_back(entry.sequence);
          nccl_before_ = before.nccl;
          waiting_before_ = before.waiting.contains(entry.lane);
          if (entry.batch == nullptr) return Next::kWait;
          if (what == Next::kAway) away_ = std::move(entry.batch);
          if (what == Next::kGone) entry.batch.reset();
          return what;
        },
        [&](LaneId lane) { ended_.push_back(ToInt(lane)); });
    return asked;
  }
  DeviceQueue queue_;
  std::unique_ptr<BatchJob> away_;
  bool nccl_before_ = false, waiting_before_ = false;
  std::vector<int32_t> ended_;
};

TEST_F(DeviceQueueTest, TellsWhatStandsBeforeAnEntry) {
  queue_.Push(PlaneBatch(1, 1));
  queue_.Push(PlaneBatch(1, 2));
  EXPECT_THAT(Advance(Next::kWait), ElementsAre(1, 2));
  EXPECT_TRUE(waiting_before_);
  EXPECT_FALSE(nccl_before_);
  Advance(Next::kWaitForNccl);
  EXPECT_TRUE(nccl_before_);
}

TEST_F(DeviceQueueTest, WhatIsAwayKeepsItsPlace) {
  queue_.Push(PlaneBatch(1, 1));
  Advance(Next::kAway);
  EXPECT_FALSE(queue_.has_any());
  queue_.Push(PlaneBatch(1, 2));
  queue_.Return(std::move(away_));
  EXPECT_THAT(Advance(Next::kWait), ElementsAre(1, 2));
}

TEST_F(DeviceQueueTest, ALaneEndsBehindItsLastEntry) {
  queue_.Push(PlaneBatch(1, 1));
  queue_.EndLane(LaneId{1});
  queue_.EndLane(LaneId{2});
  Advance(Next::kWait);
  EXPECT_THAT(ended_, ElementsAre(2));
  Advance(Next::kGone);
  EXPECT_THAT(ended_, ElementsAre(2, 1));
}

TEST(CalledQueueTest, ACallFollowsEachItem) {
  CalledQueue<int> queue(8, Clock::Real());
  std::thread pushes([&] { queue.Push(7); });
  queue.AwaitCall(absl::InfiniteFuture());
  pushes.join();
  EXPECT_THAT(queue.TakeAll(), ElementsAre(7));
  EXPECT_FALSE(queue.Finished());
  queue.Close();
  EXPECT_FALSE(queue.Push(8));
  queue.AwaitCall(absl::InfiniteFuture());
  EXPECT_TRUE(queue.Finished());
}

TEST(LazyThreadTest, IsStartedOnceAndNotAfterItsEnd) {
  LazyThread lazy;
  EXPECT_FALSE(lazy.runs());
  std::atomic<int> ran = 0;
  for (int i = 0; i < 2; ++i) lazy.Ensure("lazy", [&] { ++ran; });
  EXPECT_TRUE(lazy.runs());
  lazy.Stop().join();
  lazy.Ensure("lazy", [&] { ++ran; });
  EXPECT_FALSE(lazy.runs());
  EXPECT_FALSE(lazy.Stop().joinable());
  EXPECT_EQ(ran, 1);
}

TEST(DeviceReportTest, TellsOfEachChangeOnce) {
  DeviceReport report;
  int64_t told = 0;
  EXPECT_FALSE(report.UseBeyond(&told).has_value());
  for (int i = 0; i < 2; ++i) report.NoteNccl(absl::UnavailableError("no NCCL"));
  ASSERT_TRUE(report.UseBeyond(&told).has_value());
  EXPECT_FALSE(report.UseBeyond(&told).has_value());
  int asked = 0;
  for (int i = 0; i < 2; ++i) report.NoteNetPlugin([&] { return ++asked == 1 ? "libnet.so" : ""; });
  EXPECT_EQ(asked, 1);
  EXPECT_TRUE(report.UseBeyond(&told).has_value());
  report.ForgetDecision(ProcessSetId{1});
  EXPECT_FALSE(report.UseBeyond(&told).has_value());
}

// Else whoever looks for the generation's end takes it for a fault of its own.
TEST(DeviceAgreementTest, EndsWithTheGenerationWhereItsStoreIsClosed) {
  for (const int32_t index : {0, 1}) {
    ClosedStore store;
    std::atomic<bool> decided = false;
    const DeviceAgreement agreement({ProcessSetId{}, index, 2}, DeviceClaim(), DeviceRules(), store,
                                    Clock::Real(), [&] { decided.store(true); });
    const absl::Time limit = Clock::Real().Now() + kHangLimit;
    while (!decided.load() && Clock::Real().Now() < limit) std::this_thread::yield();
    ASSERT_TRUE(agreement.decision().has_value());
    EXPECT_THAT(agreement.decision()->status(),
                StatusIs(absl::StatusCode::kAborted, HasSubstr("generation 1 is over")));
  }
}

TEST(DeviceAgreementsTest, WithoutNcclARankSaysWhyAndAllStage) {
  DevicePlaneOptions options;
  GpuAccess access({});
  InMemoryStore store;
  DeviceReport report;
  std::atomic<bool> decided = false;
  DeviceAgreements agreements(options, GroupLayout::OneNode(Rank{0}, 1), access, store,
                              Clock::Real(), report, [&](ProcessSetId) { decided.store(true); });
  EXPECT_FALSE(agreements.DecisionOf(ProcessSetId{}).has_value());
  agreements.Begin(ProcessSetId{3});  // not a set of this rank
  EXPECT_FALSE(agreements.EndGroup(ProcessSetId{3}));
  agreements.Begin(ProcessSetId{});
  const absl::Time limit = Clock::Real().Now() + kHangLimit;
  while (!decided.load() && Clock::Real().Now() < limit) std::this_thread::yield();
  const auto decision = agreements.DecisionOf(ProcessSetId{});
  ASSERT_TRUE(decision.has_value() && decision->ok());
  EXPECT_FALSE((*decision)->nccl);
  agreements.Forget(ProcessSetId{});
  EXPECT_FALSE(agreements.DecisionOf(ProcessSetId{}).has_value());
}

TEST(DeviceAgreementsTest, ARankIsOnOneDevice) {
  DevicePlaneOptions options;
  GpuAccess access({});
  InMemoryStore store;
  DeviceReport report;
  DeviceAgreements agreements(options, GroupLayout::OneNode(Rank{1}, 2), access, store,
                              Clock::Real(), report, [](ProcessSetId) {});
  EXPECT_THAT(agreements.ClaimDevice(1), IsOk());
  EXPECT_THAT(agreements.ClaimDevice(0),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("device 0, expected 1")));
  EXPECT_EQ(agreements.device(), 1);
  EXPECT_THAT(agreements.MembersOf(ProcessSetId{}), ElementsAre(0, 1));
  agreements.DefineGroup(ProcessSetId{2},
                         std::make_shared<const std::vector<int32_t>>(std::vector<int32_t>{1}));
  EXPECT_THAT(agreements.MembersOf(ProcessSetId{2}), ElementsAre(1));
}

}  // namespace
}  // namespace coordd
