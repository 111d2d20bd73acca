#include "worker/gpu/plane/device_progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/protocol/protocol_bounds.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Stage = DeviceProgress::Stage;

class DeviceProgressTest : public ::testing::Test {
 protected:
  DeviceProgress::Number Launch(const std::string& name, int64_t sequence, size_t tensors = 1) {
    std::vector<TensorJob> jobs(tensors);
    for (size_t i = 0; i < tensors; ++i) {
      TensorSpec spec;
      spec.name = i == 0 ? name : absl::StrCat(name, "/", i);
      spec.shape = {4};
      jobs[i].work = std::make_shared<Work>(std::move(spec), Clock::Real());
    }
    const BatchJob batch(BatchContext{}, LaneId{3}, sequence, std::move(jobs));
    return progress_.Launching(batch, now_);
  }
  DeviceProgress::Number Enqueue(const std::string& name, int64_t sequence) {
    const DeviceProgress::Number number = Launch(name, sequence);
    progress_.Enqueued(number, now_);
    return number;
  }
  void Pass(int seconds) { now_ += absl::Seconds(seconds); }
  std::vector<Stage> Stages() {
    std::vector<Stage> stages;
    for (const auto& batch : progress_.Launched(now_, 100)) stages.push_back(batch.stage);
    return stages;
  }

  DeviceProgress progress_;
  absl::Time now_ = absl::FromUnixSeconds(1000);
};

TEST_F(DeviceProgressTest, OnlyTheFirstOfTheStreamIsLookedAt) {
  const auto first = Enqueue("a", 1);
  const auto second = Enqueue("b", 2);
  EXPECT_EQ(progress_.Unclear(now_ - absl::Seconds(1)), std::nullopt) << "it is young";
  Pass(1);
  ASSERT_EQ(progress_.Unclear(now_ - absl::Seconds(1)), first);
  EXPECT_THAT(Stages(), ElementsAre(Stage::kEnqueued, Stage::kEnqueued));
  progress_.NoteTensors(first, /*are_made=*/true, now_);
  EXPECT_THAT(Stages(), ElementsAre(Stage::kStarted, Stage::kEnqueued));
  EXPECT_EQ(progress_.Unclear(now_), std::nullopt) << "nothing more is to be found out";
  progress_.Ended(first, now_);
  EXPECT_EQ(progress_.Unclear(now_), second);
}

TEST_F(DeviceProgressTest, OneIsHeldWhileTheProgramMakesItsTensors) {
  const auto number = Enqueue("a", 1);
  Pass(2);
  progress_.NoteTensors(number, /*are_made=*/false, now_);
  EXPECT_THAT(Stages(), ElementsAre(Stage::kHeld));
  EXPECT_EQ(progress_.Unclear(now_), number) << "it may still come";
  Pass(2);
  progress_.NoteTensors(number, /*are_made=*/true, now_);
  const auto told = progress_.Launched(now_, 1);
  EXPECT_EQ(told[0].stage, Stage::kStarted);
  EXPECT_EQ(told[0].launched, now_ - absl::Seconds(4));
  EXPECT_EQ(told[0].in_stage_since, now_);
}

TEST_F(DeviceProgressTest, OneWhoseTensorsAreThereHasStartedWhenItWasItsTurn) {
  const auto first = Enqueue("a", 1);
  const auto second = Enqueue("b", 2);
  Pass(3);
  EXPECT_EQ(progress_.Ended(first, now_), now_ - absl::Seconds(3));
  Pass(2);
  progress_.NoteTensors(second, /*are_made=*/true, now_);
  EXPECT_EQ(progress_.Launched(now_, 1)[0].in_stage_since, now_ - absl::Seconds(2));
  EXPECT_EQ(progress_.Ended(second, now_), now_ - absl::Seconds(2));
}

TEST_F(DeviceProgressTest, WhatNcclHasNotEnqueuedIsBeingLaunched) {
  const auto number = Launch("a", 1);
  Pass(5);
  EXPECT_THAT(Stages(), ElementsAre(Stage::kLaunching));
  EXPECT_EQ(progress_.Unclear(now_), std::nullopt);
  progress_.Enqueued(number, now_);
  EXPECT_THAT(Stages(), ElementsAre(Stage::kEnqueued));
}

TEST_F(DeviceProgressTest, WhatFailsBehindOthersIsNotTold) {
  const auto first = Enqueue("a", 1);
  const auto second = Launch("b", 2);
  progress_.Ended(second, now_);
  EXPECT_THAT(Stages(), ElementsAre(Stage::kEnqueued));
  progress_.Ended(first, now_);
  EXPECT_THAT(Stages(), IsEmpty());
  EXPECT_EQ(Enqueue("c", 3), second + 1);
}

TEST_F(DeviceProgressTest, TellsOfTheOldestWithinTheBoundsOfAHeartbeat) {
  Launch("a\n" + std::string(500, 'x'), 7, /*tensors=*/42);
  for (int64_t sequence = 8; sequence < 20; ++sequence) Enqueue("a", sequence);
  Pass(90);
  v1::Heartbeat heartbeat;
  TellOfDevice(progress_.Launched(now_, 100), now_, heartbeat);
  ASSERT_EQ(heartbeat.device_batches_size(), kMaxDeviceBatches);
  const v1::DeviceBatch& told = heartbeat.device_batches(0);
  EXPECT_EQ(told.lane(), 3);
  EXPECT_EQ(told.sequence(), 7);
  EXPECT_EQ(told.tensors(), 42);
  EXPECT_EQ(told.kind(), v1::COLLECTIVE_KIND_ALLREDUCE);
  EXPECT_EQ(told.stage(), v1::DEVICE_STAGE_LAUNCHING);
  EXPECT_EQ(told.on_device().seconds(), 90);
  EXPECT_LE(told.tensor().size(), static_cast<size_t>(kMaxDeviceBatchNameBytes));
}

}  // namespace
}  // namespace coordd
