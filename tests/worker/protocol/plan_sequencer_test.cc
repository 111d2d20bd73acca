#include "worker/protocol/plan_sequencer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr LaneId kLane{0};

TEST(PlanSequencer, LaunchesInSequence) {
  PlanSequencer sequencer;
  EXPECT_THAT(sequencer.Launch(kLane, 1), IsOk());
  EXPECT_THAT(sequencer.Launch(kLane, 2), IsOk());
  EXPECT_FALSE(sequencer.drained());
  EXPECT_THAT(sequencer.Progress(), SizeIs(1));
  EXPECT_EQ(sequencer.Progress()[0].launched, 2);
  EXPECT_EQ(sequencer.Progress()[0].completed, 0);
}

TEST(PlanSequencer, RefusesAGapAndARepetition) {
  PlanSequencer sequencer;
  EXPECT_THAT(sequencer.Launch(kLane, 2),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("batch 2 on lane 0, expected 1")));
  ASSERT_THAT(sequencer.Launch(kLane, 1), IsOk());
  EXPECT_THAT(sequencer.Launch(kLane, 1),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("expected 2")));
}

TEST(PlanSequencer, CountsLanesApart) {
  PlanSequencer sequencer;
  EXPECT_THAT(sequencer.Launch(LaneId{0}, 1), IsOk());
  EXPECT_THAT(sequencer.Launch(LaneId{3}, 1), IsOk());
  EXPECT_THAT(sequencer.Progress(), SizeIs(2));
}

TEST(PlanSequencer, CountsAsCompletedOnlyWhatHasNothingOpenBeforeIt) {
  PlanSequencer sequencer;
  for (int64_t sequence : {1, 2, 3}) ASSERT_THAT(sequencer.Launch(kLane, sequence), IsOk());
  sequencer.Complete(kLane, 2);
  EXPECT_EQ(sequencer.Progress()[0].completed, 0);
  sequencer.Complete(kLane, 1);
  EXPECT_EQ(sequencer.Progress()[0].completed, 2);
  sequencer.Complete(kLane, 3);
  EXPECT_EQ(sequencer.Progress()[0].completed, 3);
  EXPECT_TRUE(sequencer.drained());
}

TEST(PlanSequencer, ForgetsALaneThatHasEndedOnceItIsDrained) {
  PlanSequencer sequencer;
  ASSERT_THAT(sequencer.Launch(LaneId{3}, 1), IsOk());
  sequencer.End(LaneId{3});
  sequencer.End(LaneId{4});  // never used
  EXPECT_THAT(sequencer.Progress(), SizeIs(1));
  sequencer.Complete(LaneId{3}, 1);
  EXPECT_THAT(sequencer.Progress(), SizeIs(0));
}

}  // namespace
}  // namespace coordd
