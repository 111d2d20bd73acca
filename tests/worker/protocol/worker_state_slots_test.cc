// What a worker decides about slots: numbers that stand for tensors that were planned before.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/status_matchers.h"
#include "tests/worker/support/state_member.h"

namespace coordd {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

// A plan that gives slots to what it names, and one in slots.
v1::CoordinatorMessage PlanWithSlots(Member& member, int64_t sequence,
                                     const std::vector<std::string>& names, int64_t first_slot) {
  v1::CoordinatorMessage message = member.Message();
  v1::FusedBatch& batch = *message.mutable_plan()->add_batches();
  batch.set_sequence(sequence);
  for (const std::string& name : names) {
    batch.add_tensors(name);
    v1::SlotBinding& binding = *message.mutable_plan()->add_bindings();
    binding.set_slot(first_slot++);
    binding.set_name(name);
  }
  return message;
}

v1::CoordinatorMessage PlanOfSlots(Member& member, int64_t sequence,
                                   const std::vector<int64_t>& slots) {
  v1::CoordinatorMessage message = member.Message();
  v1::FusedBatch& batch = *message.mutable_plan()->add_batches();
  batch.set_sequence(sequence);
  for (int64_t slot : slots) batch.add_slots(slot);
  return message;
}

WorkerStateOptions WithSlots(int64_t slots) {
  WorkerStateOptions options = Member::Options();
  options.slots = slots;
  return options;
}

TEST(WorkerStateSlots, ReportsBySlotWhatHasOne) {
  Member member(kStart, WithSlots(8));
  member.Submit({Gradient("a"), Gradient("b")});
  member.Say(PlanWithSlots(member, 1, {"b", "a"}, 1));
  member.Done(1);
  member.Clear();
  member.Submit({Gradient("a"), Gradient("b"), Gradient("c")});
  auto reports = member.sent(v1::WorkerMessage::kTensorsReady);
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_THAT(reports[0].tensors_ready().tensors(), SizeIs(1)) << "c has none";
  ASSERT_THAT(reports[0].tensors_ready().cached(), SizeIs(1));
  const v1::CachedTensors& cached = reports[0].tensors_ready().cached(0);
  EXPECT_EQ(cached.known(), 2);
  EXPECT_EQ(cached.first_slot(), 1);
  EXPECT_EQ(cached.bits(), "\x03");
  member.Say(PlanOfSlots(member, 2, {2, 1}));
  EXPECT_THAT(member.state().status(), IsOk());
  EXPECT_THAT(member.All<LaunchBatch>(), SizeIs(1));
  EXPECT_EQ(member.All<LaunchBatch>()[0].tensors, (LaunchBatch::Tensors{TensorId{3}, TensorId{4}}))
      << "slot 2 is a, slot 1 is b";
}

TEST(WorkerStateSlots, ASlotMeansJustTheSpecThatItStandsFor) {
  Member member(kStart, WithSlots(8));
  member.Submit({Gradient("a", {10})});
  member.Say(PlanWithSlots(member, 1, {"a"}, 1));
  member.Done(1);
  member.Clear();
  member.Submit({Gradient("a", {11})});
  const auto reports = member.sent(v1::WorkerMessage::kTensorsReady);
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_THAT(reports[0].tensors_ready().tensors(), SizeIs(1));
  ASSERT_THAT(reports[0].tensors_ready().cached(), SizeIs(1));
  EXPECT_EQ(reports[0].tensors_ready().cached(0).known(), 1) << "what it knows is said";
  EXPECT_EQ(reports[0].tensors_ready().cached(0).bits(), "");
}

TEST(WorkerStateSlots, AnotherCallOfTheNameIsReportedAsSuch) {
  const TensorSpec known = Gradient("a", {10});
  std::vector<TensorSpec> others(6, known);
  others[0].shape = {5, 2};
  others[1].dtype = DataType::kFloat64;
  others[2].op = ReduceOp::kMax;
  others[3].postscale_factor = 0.5;
  others[4].kind = CollectiveKind::kReducescatter;
  others[5].group = "G";
  others[5].group_size = 1;
  for (const TensorSpec& other : others) {
    Member member(kStart, WithSlots(8));
    member.Submit({known});
    member.Say(PlanWithSlots(member, 1, {"a"}, 1));
    member.Done(1);
    member.Clear();
    member.Submit({other});
    const auto reports = member.sent(v1::WorkerMessage::kTensorsReady);
    ASSERT_THAT(reports, SizeIs(1));
    EXPECT_THAT(reports[0].tensors_ready().tensors(), SizeIs(1)) << ToString(other);
    EXPECT_EQ(reports[0].tensors_ready().cached(0).bits(), "") << ToString(other);
    // Its new slot is the one that counts from then on.
    member.Say(PlanWithSlots(member, 2, {"a"}, 2));
    member.Done(2);
    member.Clear();
    member.Submit({other});
    const auto again = member.sent(v1::WorkerMessage::kTensorsReady);
    ASSERT_THAT(again, SizeIs(1));
    EXPECT_EQ(again[0].tensors_ready().cached(0).first_slot(), 2) << ToString(other);
  }
}

// However much is reported at once: behind its join a rank has nothing to submit.
TEST(WorkerStateSlots, WhatHasASlotIsReportedBeforeAJoin) {
  Member member(kStart, WithSlots(8));
  member.Submit({Gradient("a")});
  member.Say(PlanWithSlots(member, 1, {"a"}, 1));
  member.Done(1);
  member.Clear();
  std::vector<TensorSpec> specs = {Gradient("a")};
  for (int i = 0; i < 2000; ++i) specs.push_back(Gradient(absl::StrCat(std::string(500, 'n'), i)));
  specs.emplace_back().name = kJoinName;
  specs.back().kind = CollectiveKind::kJoin;
  member.Submit(specs);
  const auto reports = member.sent(v1::WorkerMessage::kTensorsReady);
  ASSERT_GT(reports.size(), 1u);
  EXPECT_EQ(reports.front().tensors_ready().cached(0).bits(), "\x01");
  const auto& last = reports.back().tensors_ready().tensors();
  EXPECT_EQ(last[last.size() - 1].name(), kJoinName);
}

TEST(WorkerStateSlots, OldSlotsAreForgotten) {
  Member member(kStart, WithSlots(2));
  member.Submit({Gradient("a"), Gradient("b"), Gradient("c")});
  member.Say(PlanWithSlots(member, 1, {"a", "b", "c"}, 1));
  member.Done(1);
  member.Clear();
  member.Submit({Gradient("a"), Gradient("b"), Gradient("c")});
  const auto reports = member.sent(v1::WorkerMessage::kTensorsReady);
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_THAT(reports[0].tensors_ready().tensors(), SizeIs(1)) << "a";
  EXPECT_EQ(reports[0].tensors_ready().cached(0).first_slot(), 2);
  member.Say(PlanOfSlots(member, 2, {1}));
  EXPECT_THAT(member.state().status(), StatusIs(absl::StatusCode::kInternal, HasSubstr("slot 1")));
}

TEST(WorkerStateSlots, ASlotIsGivenInOrderAndToWhatThisRankHasSubmitted) {
  {
    Member member(kStart, WithSlots(8));
    member.Submit({Gradient("a")});
    member.Say(PlanWithSlots(member, 1, {"a"}, 2));
    EXPECT_THAT(member.state().status(),
                StatusIs(absl::StatusCode::kInternal, HasSubstr("slot 2")));
  }
  Member member(kStart, WithSlots(8));
  member.Submit({Gradient("a")});
  v1::CoordinatorMessage plan = PlanWithSlots(member, 1, {"a"}, 1);
  plan.mutable_plan()->mutable_bindings(0)->set_name("b");
  member.Say(plan);
  EXPECT_THAT(member.state().status(),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("tensor b")));
}

}  // namespace
}  // namespace coordd
