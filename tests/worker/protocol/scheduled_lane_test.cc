#include "worker/protocol/scheduled_lane.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/protocol/protocol_bounds.h"
#include "tests/support/status_matchers.h"
#include "tests/worker/support/state_member.h"

namespace coordd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TensorSpec Of(const std::string& name, const std::string& group, int32_t size) {
  TensorSpec spec = Gradient(name);
  spec.group = group;
  spec.group_size = size;
  return spec;
}

class Lane {
 public:
  explicit Lane(std::vector<std::vector<TensorSpec>> batches)
      : lane_(1, LaneId{kFirstScheduleLane}, ProcessSetId{}, std::move(batches)) {}

  absl::Status Take(const SharedSpec& spec) {
    for (size_t slot = 0; slot < lane_.slots(); ++slot) {
      if (lane_.spec(slot).name != spec->name) continue;
      return lane_.Take(slot, {TensorId{++last_id_}, spec, kStart, kStart + kTimeout, {}}, kStart);
    }
    return absl::NotFoundError(spec->name);
  }
  // Of everything that may be launched.
  std::vector<int64_t> Launch() {
    std::vector<int64_t> sequences;
    while (auto batch = lane_.Next()) sequences.push_back(batch->sequence);
    return sequences;
  }
  std::vector<std::string> Cut(int64_t position) {
    std::vector<std::string> names;
    lane_.Freeze();
    const absl::StatusOr<std::vector<HeldTensor>> behind = lane_.Cut(position);
    for (const HeldTensor& held : *behind) names.push_back(held.spec->name);
    return names;
  }
  absl::Status TakeNext(const SharedSpec& spec) {
    const std::optional<size_t> slot = lane_.NextSlotOf(spec);
    if (!slot.has_value()) return absl::NotFoundError(spec->name);
    return lane_.Take(*slot, {TensorId{++last_id_}, spec, kStart, kStart + kTimeout, {}}, kStart);
  }
  ScheduledLane* operator->() { return &lane_; }

 private:
  ScheduledLane lane_;
  int64_t last_id_ = 0;
};

TEST(ScheduledLaneTest, LaunchesInTheOrderOfTheScheduleAgainAndAgain) {
  Lane lane({{Gradient("a"), Gradient("b")}, {Gradient("c")}});
  for (int64_t cycle = 0; cycle < 3; ++cycle) {
    EXPECT_THAT(lane.Take(Gradient("c")), IsOk());
    EXPECT_THAT(lane.Launch(), IsEmpty()) << "the first batch is not here";
    EXPECT_THAT(lane.Take(Gradient("b")), IsOk());
    EXPECT_THAT(lane.Launch(), IsEmpty());
    EXPECT_THAT(lane->Missing(3), ElementsAre("a"));
    EXPECT_THAT(lane.Take(Gradient("a")), IsOk());
    EXPECT_THAT(lane.Launch(), ElementsAre(2 * cycle + 1, 2 * cycle + 2));
  }
}

TEST(ScheduledLaneTest, FindsWhatIsSubmittedAgainWithoutItsName) {
  const SharedSpec a = Gradient("a"), b = Gradient("b"), other_b = Gradient("b", {5});
  Lane lane({{Gradient("a"), Gradient("b")}});
  EXPECT_THAT(lane.TakeNext(a), StatusIs(absl::StatusCode::kNotFound, testing::_))
      << "not seen yet";
  ASSERT_THAT(lane.Take(a), IsOk());
  ASSERT_THAT(lane.Take(b), IsOk());
  EXPECT_THAT(lane.Launch(), ElementsAre(1));
  EXPECT_THAT(lane.TakeNext(b), StatusIs(absl::StatusCode::kNotFound, testing::_)) << "a is next";
  EXPECT_THAT(lane.TakeNext(a), IsOk());
  EXPECT_THAT(lane.TakeNext(Gradient("b")), StatusIs(absl::StatusCode::kNotFound, testing::_));
  EXPECT_THAT(lane.TakeNext(b), IsOk());
  EXPECT_THAT(lane.Launch(), ElementsAre(2));
  // What differs is not known afterwards, whatever it was before.
  ASSERT_THAT(lane.TakeNext(a), IsOk());
  EXPECT_FALSE(lane.Take(other_b).ok());
  EXPECT_THAT(lane.Cut(2), ElementsAre("a", "b"));
  EXPECT_THAT(lane.TakeNext(other_b), StatusIs(absl::StatusCode::kNotFound, testing::_));
}

TEST(ScheduledLaneTest, WhatDiffersIsHeldAndNamedAndNotLaunched) {
  Lane lane({{Gradient("a")}});
  const absl::Status taken = lane.Take(Gradient("a", {5}));
  EXPECT_THAT(taken, StatusIs(absl::StatusCode::kFailedPrecondition,
                              HasSubstr("tensor a came as allreduce float32 [5] sum, its schedule "
                                        "has allreduce float32 [4] sum")));
  EXPECT_THAT(lane.Launch(), IsEmpty());
  EXPECT_THAT(lane.Cut(0), ElementsAre("a"));
}

TEST(ScheduledLaneTest, AGroupOverSeveralBatchesIsLaunchedAsAWhole) {
  Lane lane(
      {{Of("g0", "g", 2), Gradient("x")}, {Gradient("y")}, {Of("g1", "g", 2)}, {Gradient("z")}});
  for (const char* name : {"x", "y", "z"}) ASSERT_THAT(lane.Take(Gradient(name)), IsOk());
  ASSERT_THAT(lane.Take(Of("g0", "g", 2)), IsOk());
  EXPECT_THAT(lane.Launch(), IsEmpty()) << "the second half of the group is not here";
  ASSERT_THAT(lane.Take(Of("g1", "g", 2)), IsOk());
  EXPECT_THAT(lane.Launch(), ElementsAre(1, 2, 3, 4));
}

TEST(ScheduledLaneTest, LaunchesNothingWhenFrozenAndUpToTheCutBehind) {
  Lane lane({{Gradient("a")}, {Gradient("b")}});
  ASSERT_THAT(lane.Take(Gradient("a")), IsOk());
  ASSERT_THAT(lane.Launch(), ElementsAre(1));
  lane->Freeze();
  ASSERT_THAT(lane.Take(Gradient("a")), IsOk());
  ASSERT_THAT(lane.Take(Gradient("b")), IsOk());
  EXPECT_THAT(lane.Launch(), IsEmpty());
  // Another rank has launched b: this one has to, too. Its next a is behind that.
  EXPECT_THAT(lane.Cut(2), ElementsAre("a"));
  EXPECT_FALSE(lane->Wants(0));
  EXPECT_THAT(lane.Launch(), ElementsAre(2));
  EXPECT_TRUE(lane->finished());
  EXPECT_FALSE(lane->Wants(1));
}

TEST(ScheduledLaneTest, WantsWhatIsMissingUpToTheCut) {
  Lane lane({{Gradient("a")}, {Gradient("b")}});
  lane->Freeze();
  EXPECT_THAT(lane.Cut(1), IsEmpty());
  EXPECT_TRUE(lane->Wants(0));
  EXPECT_FALSE(lane->Wants(1));
  EXPECT_FALSE(lane->finished());
  ASSERT_THAT(lane.Take(Gradient("a")), IsOk());
  EXPECT_THAT(lane.Launch(), ElementsAre(1));
  EXPECT_TRUE(lane->finished());
}

TEST(ScheduledLaneTest, ACutBeforeWhatIsLaunchedIsRefused) {
  Lane lane({{Gradient("a")}});
  ASSERT_THAT(lane.Take(Gradient("a")), IsOk());
  ASSERT_THAT(lane.Launch(), ElementsAre(1));
  lane->Freeze();
  EXPECT_THAT(lane->Cut(0).status(),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("launched 1")));
}

TEST(ScheduledLaneTest, ACutThatNoRankCanHaveComeToIsRefused) {
  Lane lane({{Gradient("a")}});
  lane->Freeze();
  EXPECT_THAT(lane->Cut(kCutAheadMax + 1).status(),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("expected at most 1000000 more")));
  EXPECT_THAT(lane->Cut(kCutAheadMax), IsOk());
}

TEST(ScheduledLaneTest, WhatOthersHaveLaunchedMustBeWhatIsHeld) {
  Lane lane({{Gradient("a")}});
  EXPECT_FALSE(lane.Take(Gradient("a", {5})).ok());
  lane->Freeze();
  EXPECT_THAT(lane->Cut(1).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("tensor a")));
}

TEST(ScheduledLaneTest, ARankWithoutDataFillsUpToTheCut) {
  Lane lane({{Gradient("a"), Gradient("b")}});
  ASSERT_THAT(lane.Take(Gradient("b")), IsOk());
  lane.Cut(2);
  auto first = lane->NextWithAbsent();
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(ToInt(first->tensors[0].id), 0);
  EXPECT_EQ(first->tensors[0].spec->name, "a");
  EXPECT_NE(ToInt(first->tensors[1].id), 0);
  EXPECT_TRUE(lane->NextWithAbsent().has_value());
  EXPECT_FALSE(lane->NextWithAbsent().has_value());
}

}  // namespace
}  // namespace coordd
