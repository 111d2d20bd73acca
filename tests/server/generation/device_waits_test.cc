#include "server/generation/device_waits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/protocol/proto_convert.h"
#include "tests/server/support/generation_parts.h"

namespace coordd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr absl::Duration kDeviceWarning = absl::Seconds(60);

v1::DeviceBatch Batch(int64_t sequence, v1::DeviceStage stage, int seconds = 2) {
  v1::DeviceBatch batch;
  batch.set_sequence(sequence);
  batch.set_tensor(absl::StrCat("grad/", sequence));
  batch.set_tensors(42);
  batch.set_kind(v1::COLLECTIVE_KIND_ALLREDUCE);
  batch.set_stage(stage);
  ToProto(absl::Seconds(seconds), batch.mutable_on_device());
  return batch;
}

v1::Heartbeat Beat(const std::vector<v1::DeviceBatch>& batches, int64_t launched = 0,
                   int64_t completed = 0) {
  v1::Heartbeat heartbeat;
  for (const v1::DeviceBatch& batch : batches) *heartbeat.add_device_batches() = batch;
  heartbeat.add_lanes()->set_launched(launched);
  heartbeat.mutable_lanes(0)->set_completed(completed);
  return heartbeat;
}

class DeviceWaitsTest : public ::testing::Test {
 protected:
  void Tell(int32_t rank, const std::vector<v1::DeviceBatch>& batches, int64_t launched = 0,
            int64_t completed = 0) {
    waits_.Note(Rank{rank}, Beat(batches, launched, completed),
                absl::StrCat("GPU-", rank, ", host h", rank), now_);
  }
  std::vector<PendingTensor> All() const { return waits_.Stalled(now_, absl::ZeroDuration(), 100); }

  ProcessSets sets_{5};
  DeviceWaits waits_{sets_};
  absl::Time now_ = absl::FromUnixSeconds(1000);
};

TEST_F(DeviceWaitsTest, SaysOnWhichDeviceABatchStandsAndWhy) {
  for (int32_t rank : {0, 1, 2}) Tell(rank, {Batch(3, v1::DEVICE_STAGE_STARTED)}, 3, 2);
  Tell(3, {Batch(3, v1::DEVICE_STAGE_HELD)}, 3, 2);
  Tell(4, {}, 2, 2);
  ASSERT_THAT(All(), SizeIs(1));
  EXPECT_EQ(All()[0].name, "allreduce grad/3 (+41)");
  EXPECT_EQ(All()[0].since, now_ - absl::Seconds(2));
  EXPECT_EQ(All()[0].on_devices,
            "started on ranks 0, 1, 2, enqueued behind the program's own work on rank 3 (GPU-3, "
            "host h3), not launched on rank 4 (GPU-4, host h4)");
  EXPECT_THAT(All()[0].ready, ElementsAre(Rank{0}, Rank{1}, Rank{2}));
  EXPECT_THAT(All()[0].missing, ElementsAre(Rank{3}, Rank{4}));
  EXPECT_EQ(All()[0].missing_count, 2);
}

TEST_F(DeviceWaitsTest, WhatItDoesNotTellOfARankHasEndedOrHasOnItsWay) {
  Tell(0, {Batch(3, v1::DEVICE_STAGE_LAUNCHING)}, 3, 2);
  Tell(1, {}, 3, 3);
  Tell(2, {}, 3, 2);
  Tell(3, {Batch(3, static_cast<v1::DeviceStage>(9))}, 3, 2);
  EXPECT_THAT(All()[0].on_devices,
              AllOf(HasSubstr("ended on rank 1, "), HasSubstr("being launched on rank 0 (GPU-0"),
                    HasSubstr("on its way to the device of rank 2 (GPU-2"),
                    HasSubstr("on the device of rank 3"), HasSubstr("not launched on rank 4")));
  Tell(4, {}, 3, 3);
  EXPECT_THAT(All()[0].on_devices, HasSubstr("ended on ranks 1, 4"));
}

TEST_F(DeviceWaitsTest, OnlyWhatIsTheFirstOneSomewhereStands) {
  Tell(0, {Batch(3, v1::DEVICE_STAGE_STARTED), Batch(4, v1::DEVICE_STAGE_ENQUEUED)});
  EXPECT_THAT(All(), SizeIs(1));
  Tell(1, {Batch(4, v1::DEVICE_STAGE_STARTED)});
  EXPECT_THAT(All(), SizeIs(2));
  EXPECT_EQ(waits_.StandOf(Rank{1}), "its device is at allreduce grad/4 (+41)");
  EXPECT_EQ(waits_.StandOf(Rank{2}), "");
  Tell(1, {});
  EXPECT_THAT(All(), SizeIs(1));
}

TEST_F(DeviceWaitsTest, IsToldOnceAndGoesOnWhenNoDeviceStandsAtIt) {
  Tell(0, {Batch(3, v1::DEVICE_STAGE_STARTED, 50)});
  EXPECT_EQ(waits_.NextStall(kDeviceWarning), now_ + absl::Seconds(10));
  EXPECT_THAT(waits_.NewlyStalled(now_, kDeviceWarning), IsEmpty());
  now_ += absl::Seconds(10);
  EXPECT_THAT(waits_.NewlyStalled(now_, kDeviceWarning), SizeIs(1));
  EXPECT_THAT(waits_.NewlyStalled(now_, kDeviceWarning), IsEmpty());
  EXPECT_EQ(waits_.NextStall(kDeviceWarning), absl::InfiniteFuture());
  Tell(1, {Batch(3, v1::DEVICE_STAGE_STARTED)});
  Tell(0, {Batch(4, v1::DEVICE_STAGE_STARTED)});
  EXPECT_EQ(waits_.stalled(), 1);
  Tell(1, {Batch(4, v1::DEVICE_STAGE_STARTED)});
  EXPECT_EQ(waits_.stalled(), 0);
  Tell(0, {});
  Tell(1, {});
  EXPECT_TRUE(waits_.empty());
  EXPECT_EQ(waits_.NextStall(kDeviceWarning), absl::InfiniteFuture());
}

TEST_F(DeviceWaitsTest, KeepsNoMoreThanItsBounds) {
  for (int64_t sequence = 1; sequence <= 5000; ++sequence) {
    std::vector<v1::DeviceBatch> batches = {Batch(sequence, v1::DEVICE_STAGE_STARTED)};
    v1::Heartbeat heartbeat = Beat(batches);
    waits_.Note(Rank{static_cast<int32_t>(sequence)}, heartbeat, "", now_);
  }
  EXPECT_EQ(waits_.Stalled(now_, absl::ZeroDuration(), 10'000).size(), DeviceWaits::kMaxBatches);
  waits_.ForgetAll();
  EXPECT_TRUE(waits_.empty());
}

TEST_F(DeviceWaitsTest, ATimeInWhichCoorddStoodStillIsForgiven) {
  Tell(0, {Batch(3, v1::DEVICE_STAGE_STARTED, 50)});
  now_ += absl::Seconds(30);
  waits_.Forgive(absl::Seconds(30));
  EXPECT_THAT(waits_.NewlyStalled(now_, kDeviceWarning), IsEmpty());
  now_ += absl::Seconds(10);
  EXPECT_THAT(waits_.NewlyStalled(now_, kDeviceWarning), SizeIs(1));
}

// Whatever ranks tell in whatever order.
TEST_F(DeviceWaitsTest, ListsWhatIsTheFirstOneOfARankAndNothingElse) {
  std::mt19937 random(20261129);
  const auto below = [&](uint32_t bound) { return static_cast<int64_t>(random() % bound); };
  std::map<int32_t, int64_t> first;
  for (int round = 0; round < 5000; ++round) {
    const auto rank = static_cast<int32_t>(below(5));
    std::vector<v1::DeviceBatch> batches;
    int64_t sequence = 1 + below(10);
    first.erase(rank);
    for (int64_t left = below(4); left > 0; --left, sequence += 1 + below(2)) {
      first.try_emplace(rank, sequence);
      batches.push_back(Batch(sequence, static_cast<v1::DeviceStage>(1 + below(4)),
                              static_cast<int>(below(100))));
    }
    Tell(rank, batches, below(12), below(12));
    now_ += absl::Milliseconds(100);
    waits_.NewlyStalled(now_, kDeviceWarning);
    std::set<std::string> listed, expected;
    for (const PendingTensor& one : All()) {
      listed.insert(one.name);
      EXPECT_EQ(one.ready_count + one.missing_count, 5);
    }
    for (const auto& [of, number] : first)
      expected.insert(absl::StrCat("allreduce grad/", number, " (+41)"));
    ASSERT_EQ(listed, expected);
    ASSERT_EQ(waits_.empty(), first.empty());
    ASSERT_LE(waits_.stalled(), static_cast<int64_t>(listed.size()));
    if (first.empty()) ASSERT_EQ(waits_.stalled(), 0);
  }
}

TEST(StallWatch, TellsOnceOfWhatStandsOnDevicesAndAsksWhereTheProgramIs) {
  GenerationParts parts;
  v1::DeviceBatch batch = Batch(3, v1::DEVICE_STAGE_STARTED, 60);
  parts.devices.Note(Rank{0}, Beat({batch}), "", kStart);
  batch.set_stage(v1::DEVICE_STAGE_HELD);
  parts.devices.Note(Rank{1}, Beat({batch}), "GPU-1, host b", kStart);
  EXPECT_EQ(parts.stalls.NextDeadline(), kStart);
  EXPECT_FALSE(parts.stalls.IsAwaited(Rank{1}, kStart));
  parts.stalls.Tick({kStart, parts.effects});
  parts.stalls.Tick({kStart, parts.effects});
  ASSERT_THAT(parts.effects.events, SizeIs(1));
  EXPECT_EQ(parts.effects.events[0].kind, Event::Kind::kStallBegan);
  EXPECT_EQ(parts.effects.events[0].text,
            "allreduce grad/3 (+41) stands on the device for 1m: started on rank 0, enqueued "
            "behind the program's own work on rank 1 (GPU-1, host b), not launched on rank 2");
  EXPECT_TRUE(parts.stalls.IsAwaited(Rank{1}, kStart));
  EXPECT_FALSE(parts.stalls.IsAwaited(Rank{0}, kStart));
  EXPECT_EQ(parts.stalls.Stalled(kStart, absl::ZeroDuration(), 10)[0].name,
            "allreduce grad/3 (+41) on the device");
  for (int32_t rank : {0, 1}) parts.devices.Note(Rank{rank}, Beat({}), "", kStart);
  parts.stalls.NoteEnded(parts.effects);
  ASSERT_THAT(parts.effects.events, SizeIs(2));
  EXPECT_EQ(parts.effects.events[1].text, "1 batch that stood on devices goes on, 0 still stalled");
}

}  // namespace
}  // namespace coordd
