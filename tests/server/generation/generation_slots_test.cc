// What a generation makes of slots. Of a tensor that has one and that some ranks submit with
// another spec: whoever reports it how, and in whatever order, the ranks hear how they differ, or
// agree on the new spec; nothing is planned that a rank has not submitted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/protocol/slot_dictionary.h"
#include "server/generation/generation_state.h"
#include "tests/server/support/builders.h"
#include "tests/server/support/effects_text.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Code = absl::StatusCode;

// Three ranks; what is delivered stands as "to 0,1,2: plan 1{w} #1=w".
class GenerationSlotsTest : public ::testing::Test {
 protected:
  static constexpr int32_t kRanks = 3;

  GenerationSlotsTest() { Start(/*slots=*/4); }
  void TearDown() override { EXPECT_THAT(state_->CheckConsistency(), IsOk()); }

  void Start(int64_t slots, std::shared_ptr<ByteBudget> budget = nullptr) {
    options_.schedule_after_steps = 0;
    std::vector<SessionId> sessions;
    for (int32_t rank = 0; rank < kRanks; ++rank) sessions.push_back(SessionId{rank});
    GenerationState::Identity identity{"train", Epoch{1}, Generation{1}};
    identity.slots = slots;
    identity.budget = std::move(budget);
    state_ = std::make_unique<GenerationState>(identity, options_, sessions);
  }

  absl::Status Report(int32_t rank, const TensorSpec& spec, int64_t known = 0) {
    v1::TensorsReady ready;
    ToProto(spec, ready.add_tensors());
    if (known > 0) ready.add_cached()->set_known(known);
    return state_->OnTensorsReady(Rank{rank}, ready, {now_, effects_});
  }
  absl::Status ReportSlot(int32_t rank, int64_t slot, int64_t known) {
    v1::TensorsReady ready;
    SlotBits packed = PackSlots({slot});
    v1::CachedTensors& cached = *ready.add_cached();
    cached.set_known(known);
    cached.set_first_slot(packed.first);
    cached.set_bits(std::move(packed.bits));
    return state_->OnTensorsReady(Rank{rank}, ready, {now_, effects_});
  }
  // What is said now, to whom.
  std::vector<std::string> Said() {
    state_->Tick({now_, effects_});
    const EffectNames names{[](SessionId session) { return std::to_string(ToInt(session)); },
                            [](CallId call) { return std::to_string(ToInt(call)); }};
    std::vector<std::string> lines;
    for (const Outgoing& out : effects_.outgoing) lines.push_back(ToText(out, names));
    effects_ = Effects();
    return lines;
  }
  std::vector<std::string> AllReport(const TensorSpec& spec, int64_t known = 0) {
    for (int32_t rank = 0; rank < kRanks; ++rank) EXPECT_THAT(Report(rank, spec, known), IsOk());
    return Said();
  }
  std::vector<std::string> AllReportSlot(int64_t slot, int64_t known) {
    for (int32_t rank = 0; rank < kRanks; ++rank)
      EXPECT_THAT(ReportSlot(rank, slot, known), IsOk());
    return Said();
  }
  static auto Failure(const std::string& to, const std::string& what) {
    return testing::AllOf(HasSubstr("to " + to + ": failures w INVALID_ARGUMENT"), HasSubstr(what));
  }

  ServerOptions options_;
  const absl::Time now_ = absl::FromUnixSeconds(1000);
  std::unique_ptr<GenerationState> state_;
  Effects effects_;
};

struct Change {
  std::string what;  // as the failure calls it
  std::function<void(TensorSpec&)> make;
  CollectiveKind of = CollectiveKind::kAllreduce;
};

class AnotherSpecTest : public GenerationSlotsTest, public ::testing::WithParamInterface<Change> {
 protected:
  AnotherSpecTest() {
    known_ = Gradient("w", {8, 2});
    known_.kind = GetParam().of;
    if (!Reduces(known_.kind)) known_.op = ReduceOp::kNone;
    other_ = known_;
    GetParam().make(other_);
    EXPECT_THAT(AllReport(known_), ElementsAre("to 0,1,2: plan 1{w} #1=w"));
  }

  TensorSpec known_, other_;  // that has slot 1, and that has none
};

TEST_P(AnotherSpecTest, BehindASlotItIsAMismatch) {
  EXPECT_THAT(ReportSlot(0, 1, /*known=*/1), IsOk());
  EXPECT_THAT(Report(1, other_, /*known=*/1), IsOk());
  EXPECT_THAT(Said(), ElementsAre(Failure("0,1", "rank 1 has " + GetParam().what)));
  // Rank 2's slot was under way meanwhile: it hears the same, and later nobody.
  EXPECT_THAT(ReportSlot(2, 1, /*known=*/1), IsOk());
  EXPECT_THAT(Said(), ElementsAre(Failure("2", "rank 1 has " + GetParam().what)));
  EXPECT_THAT(AllReportSlot(1, /*known=*/1), ElementsAre("to 0,1,2: plan 2{#1}"));
}

TEST_P(AnotherSpecTest, BeforeASlotItIsAMismatch) {
  EXPECT_THAT(Report(1, other_, /*known=*/1), IsOk());
  EXPECT_THAT(ReportSlot(0, 1, /*known=*/1), IsOk());
  EXPECT_THAT(Said(), ElementsAre(Failure("0,1", "rank 0 has " + GetParam().what)));
  EXPECT_THAT(Report(2, other_, /*known=*/1), IsOk());
  EXPECT_THAT(Said(), ElementsAre(Failure("2", "rank 0 has " + GetParam().what)));
}

TEST_P(AnotherSpecTest, OnAllRanksItIsPlannedByNameAndGetsASlotOfItsOwn) {
  EXPECT_THAT(AllReport(other_, /*known=*/1), ElementsAre("to 0,1,2: plan 2{w} #2=w"));
  EXPECT_THAT(AllReportSlot(2, /*known=*/2), ElementsAre("to 0,1,2: plan 3{#2}"));
}

TEST_P(AnotherSpecTest, SlotsOfOneNameAreTwoSpecs) {
  ASSERT_THAT(AllReport(other_, /*known=*/1), ElementsAre("to 0,1,2: plan 2{w} #2=w"));
  EXPECT_THAT(ReportSlot(0, 2, /*known=*/2), IsOk());
  EXPECT_THAT(ReportSlot(1, 1, /*known=*/2), IsOk());
  EXPECT_THAT(Said(), ElementsAre(Failure("0,1", "rank 1 has " + GetParam().what)));
  EXPECT_THAT(ReportSlot(2, 2, /*known=*/2), IsOk());
  EXPECT_THAT(Said(), ElementsAre(Failure("2", "rank 1 has " + GetParam().what)));
  EXPECT_THAT(AllReportSlot(1, /*known=*/2), ElementsAre("to 0,1,2: plan 3{#1}"));
}

TEST_P(AnotherSpecTest, GoingBackToTheFirstSpecTakesAThirdSlot) {
  ASSERT_THAT(AllReport(other_, /*known=*/1), ElementsAre("to 0,1,2: plan 2{w} #2=w"));
  EXPECT_THAT(AllReport(known_, /*known=*/2), ElementsAre("to 0,1,2: plan 3{w} #3=w"));
}

// The slot has been given up since, and its sender had not heard of that.
TEST_P(AnotherSpecTest, ASlotThatIsForgottenMeansWhatItMeant) {
  Start(/*slots=*/1);
  ASSERT_THAT(AllReport(known_), ElementsAre("to 0,1,2: plan 1{w} #1=w"));
  ASSERT_THAT(AllReport(Gradient("x", {2}), /*known=*/1), ElementsAre("to 0,1,2: plan 2{x} #2=x"));
  EXPECT_THAT(ReportSlot(0, 1, /*known=*/1), IsOk());
  EXPECT_THAT(Report(1, other_, /*known=*/2), IsOk());
  EXPECT_THAT(Said(), ElementsAre(Failure("0,1", "rank 1 has " + GetParam().what)));
}

INSTANTIATE_TEST_SUITE_P(
    Changes, AnotherSpecTest,
    testing::Values(
        Change{"shape",
               [](TensorSpec& spec) {
                 spec.shape = {8, 3};
               }},
        Change{"shape", [](TensorSpec& spec) { spec.shape = {16}; }},
        Change{"dtype", [](TensorSpec& spec) { spec.dtype = DataType::kFloat64; }},
        Change{"op", [](TensorSpec& spec) { spec.op = ReduceOp::kMax; }},
        Change{"prescale factor", [](TensorSpec& spec) { spec.prescale_factor = 0.5; }},
        Change{"postscale factor", [](TensorSpec& spec) { spec.postscale_factor = 0.5; }},
        Change{"memory", [](TensorSpec& spec) { spec.memory = MemoryKind::kCuda; }},
        Change{"kind", [](TensorSpec& spec) { spec.kind = CollectiveKind::kReducescatter; }},
        Change{"root rank", [](TensorSpec& spec) { spec.root_rank = 2; },
               CollectiveKind::kBroadcast},
        Change{"shape", [](TensorSpec& spec) { spec.shape[1] = 3; }, CollectiveKind::kAllgather}));

TEST_F(GenerationSlotsTest, WhatIsTooMuchToKeepIsNamedEachTime) {
  // Of one name; the detector of patterns keeps none, since nothing is scheduled.
  const auto budget = std::make_shared<ByteBudget>(4 * 2 * KeptNames::CostOf(Gradient("a", {4})));
  Start(/*slots=*/4, budget);
  for (const char* name : {"a", "b", "c"}) AllReport(Gradient(name, {4}));
  EXPECT_GT(budget->names()->used(), 0);
  EXPECT_LE(budget->names()->used(), budget->names()->limit());
  const int64_t kept = budget->names()->used();
  // They are collectives as before.
  EXPECT_THAT(AllReport(Gradient("z", {4})), ElementsAre("to 0,1,2: plan 4{z}"));
  EXPECT_EQ(budget->names()->used(), kept);
  Start(/*slots=*/4);
  EXPECT_EQ(budget->names()->used(), 0) << "its generation is gone";
}

TEST_F(GenerationSlotsTest, RowsMayDifferFromRankToRankAndFromStepToStep) {
  TensorSpec rows = Gradient("w", {3, 4});
  rows.kind = CollectiveKind::kAllgather;
  rows.op = ReduceOp::kNone;
  ASSERT_THAT(AllReport(rows), ElementsAre("to 0,1,2: plan 1{w} #1=w"));
  TensorSpec more = rows;
  more.shape[0] = 7;
  EXPECT_THAT(ReportSlot(0, 1, /*known=*/1), IsOk());
  EXPECT_THAT(Report(1, more, /*known=*/1), IsOk());
  EXPECT_THAT(ReportSlot(2, 1, /*known=*/1), IsOk());
  // Each rank finds what it has submitted by the name that the slot stands for.
  EXPECT_THAT(Said(), ElementsAre("to 0,1,2: plan 2{#1}"));
  EXPECT_THAT(AllReport(more, /*known=*/1), ElementsAre("to 0,1,2: plan 3{#1}"));
}

TEST_F(GenerationSlotsTest, AGroupThatHasSlotsIsPlannedWhenItIsWhole) {
  const TensorSpec a = InGroup(Gradient("a", {2}), "G", 2), b = InGroup(Gradient("b", {2}), "G", 2);
  ASSERT_THAT(AllReport(a), IsEmpty());
  ASSERT_THAT(AllReport(b), ElementsAre("to 0,1,2: plan 1{a b} #1=a #2=b"));
  EXPECT_THAT(AllReportSlot(2, /*known=*/2), IsEmpty());
  EXPECT_THAT(ReportSlot(0, 1, /*known=*/2), IsOk());
  EXPECT_THAT(ReportSlot(1, 1, /*known=*/2), IsOk());
  // Alone, it is another call: the whole group fails.
  EXPECT_THAT(Report(2, Gradient("a", {2}), /*known=*/2), IsOk());
  const std::vector<std::string> said = Said();
  ASSERT_THAT(said, ElementsAre(HasSubstr("rank 2 has group none, rank 0 has G")));
  EXPECT_THAT(said[0], HasSubstr(" a INVALID_ARGUMENT"));
  EXPECT_THAT(said[0], HasSubstr(" b INVALID_ARGUMENT"));
}

// Whoever has joined has not submitted it, also if the last rank joins in the same turn.
TEST_F(GenerationSlotsTest, WhatIsPlannedWithTheLastJoinHasItsSpec) {
  const TensorSpec spec = Gradient("w", {8});
  TensorSpec join;
  join.name = kJoinName;
  join.kind = CollectiveKind::kJoin;
  ASSERT_THAT(AllReport(spec), ElementsAre("to 0,1,2: plan 1{w} #1=w"));
  EXPECT_THAT(Report(1, join), IsOk());
  EXPECT_THAT(Report(2, join), IsOk());
  ASSERT_THAT(Said(), IsEmpty());
  EXPECT_THAT(ReportSlot(0, 1, /*known=*/1), IsOk());
  EXPECT_THAT(Report(0, Gradient("x", {2}), /*known=*/1), IsOk());
  EXPECT_THAT(Report(0, join), IsOk());
  const std::vector<std::string> said = Said();
  ASSERT_THAT(said, ElementsAre(HasSubstr("plan 2{w x} "), "to 0,1,2: plan 3{join} last=0"));
  EXPECT_THAT(said[0], testing::Not(HasSubstr("#"))) << "neither used nor given";
  EXPECT_THAT(AllReportSlot(1, /*known=*/1), ElementsAre("to 0,1,2: plan 4{#1}"));
}

TEST_F(GenerationSlotsTest, ATensorIsReportedOnceHoweverItIsCalled) {
  const TensorSpec spec = Gradient("w", {8});
  ASSERT_THAT(AllReport(spec), ElementsAre("to 0,1,2: plan 1{w} #1=w"));
  EXPECT_THAT(ReportSlot(0, 1, /*known=*/1), IsOk());
  EXPECT_THAT(Report(0, spec), IsOk());
  EXPECT_THAT(Said(), ElementsAre(HasSubstr("to 0: failures w ALREADY_EXISTS")));
}

TEST_F(GenerationSlotsTest, WhatASenderCannotMeanBreaksTheProtocol) {
  ASSERT_THAT(AllReport(Gradient("w", {8})), ElementsAre("to 0,1,2: plan 1{w} #1=w"));
  EXPECT_THAT(ReportSlot(0, 2, /*known=*/2),
              StatusIs(Code::kInvalidArgument,
                       "cannot know slot 2 of process set 0, of which 1 were given"));
  EXPECT_THAT(ReportSlot(1, 1, /*known=*/1), IsOk());
  EXPECT_THAT(ReportSlot(1, 1, /*known=*/0),
              StatusIs(Code::kInvalidArgument, HasSubstr("cannot know slot 0")));
  EXPECT_THAT(
      ReportSlot(2, 2, /*known=*/1),
      StatusIs(Code::kInvalidArgument, "reports slot 2 of process set 0, of which 1 were given"));
}

}  // namespace
}  // namespace coordd
