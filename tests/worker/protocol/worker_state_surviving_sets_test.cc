// Process sets in the generation that follows theirs, as one of its ranks knows them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/support/status_matchers.h"
#include "tests/worker/support/state_member.h"
#include "worker/execute/worker_errors.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr v1::WorkerMessage::BodyCase kRecovery = v1::WorkerMessage::kRecoveryReport;

TensorSpec InSet(int32_t set, const std::string& name) {
  TensorSpec spec = Gradient(name);
  spec.process_set = ProcessSetId{set};
  return spec;
}

// Rank 0 of 3, with process set 1 of ranks 0 and 1, 2 of rank 2, and pair 3 with rank 1.
class SetMember : public Member {
 public:
  explicit SetMember(OnFailure on_failure = OnFailure::kRaise)
      : Member(kStart, Options(on_failure)) {
    for (int64_t request = 1; request <= 2; ++request)
      Turn(ProcessSetAsked{request, ProcessSetId{0}, {}, now() + kTimeout});
    Change(1, 1, {0, 1}, /*position=*/4);
    Change(2, 2, {2}, /*position=*/6);
    Change(0, 3, {0, 1}, /*position=*/8);
    Clear();
  }
  void Lose(bool report_sets = false) {
    Abort(v1::DEPARTURE_CAUSE_CONNECTION_LOST, "was lost: its stream ended", /*in_flight=*/true,
          /*reforms=*/true, report_sets);
  }
  bool Enters() const { return !All<EnterGeneration>().empty(); }
};

TEST(WorkerStateSurvivingSets, TheGenerationBeginsBehindTheLastPart) {
  SetMember member;
  member.Lose();
  member.NextGeneration(/*rank=*/0, /*size=*/2, /*sets_follow=*/true);
  EXPECT_FALSE(member.Enters());
  member.SayProcessSet(1, {0, 1}, 4, /*more=*/true);
  EXPECT_FALSE(member.Enters());
  member.SayProcessSet(4, {1}, 4);
  ASSERT_THAT(member.All<EnterGeneration>(), SizeIs(1));
  const std::vector<DefineProcessSet> sets = member.All<EnterGeneration>()[0].process_sets;
  ASSERT_THAT(sets, SizeIs(2));
  EXPECT_EQ(sets[0].process_set, ProcessSetId{1});
  EXPECT_THAT(sets[0].ranks, ElementsAre(0, 1));
  EXPECT_TRUE(sets[0].member);
  EXPECT_EQ(sets[1].process_set, ProcessSetId{4});
  EXPECT_FALSE(sets[1].member);
}

TEST(WorkerStateSurvivingSets, ItSubmitsInThemAndInNoOther) {
  SetMember member;
  member.Lose();
  member.NextGeneration(/*rank=*/0, /*size=*/2, /*sets_follow=*/true);
  member.SayProcessSet(1, {0, 1}, 3);
  member.Clear();
  member.Submit({InSet(1, "a"), InSet(2, "b"), InSet(3, "c")});
  EXPECT_THAT(member.reported(), ElementsAre("a"));
  EXPECT_THAT(member.failure(2),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("never was")));
  EXPECT_THAT(member.failure(3),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("never was")));
  member.PlanIn(1, 1, {"a"});
  ASSERT_THAT(member.All<LaunchBatch>(), SizeIs(1));
  EXPECT_EQ(member.All<LaunchBatch>()[0].process_set, ProcessSetId{1});
}

TEST(WorkerStateSurvivingSets, WithoutAnyTheGenerationBeginsAtOnceAndHasNone) {
  SetMember member;
  member.Lose();
  member.NextGeneration(/*rank=*/0, /*size=*/2);
  ASSERT_THAT(member.All<EnterGeneration>(), SizeIs(1));
  EXPECT_THAT(member.All<EnterGeneration>()[0].process_sets, IsEmpty());
  member.Submit({InSet(1, "a")});
  EXPECT_THAT(member.failure(1),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("never was")));
}

TEST(WorkerStateSurvivingSets, WhatIsPendingInThemFailsAlsoWhereProgramsNeedNotKnow) {
  SetMember member(OnFailure::kContinue);
  member.Submit({InSet(1, "a"), Gradient("b")});
  member.Lose();
  EXPECT_THAT(member.failure(1), IsOk());  // the ranks that go with the error are not known yet
  member.NextGeneration(/*rank=*/0, /*size=*/2, /*sets_follow=*/true);
  member.SayProcessSet(1, {0, 1}, 3);
  EXPECT_THAT(member.failure(1), StatusIs(absl::StatusCode::kAborted, HasSubstr("was lost")));
  EXPECT_THAT(member.failure(2), IsOk());
  member.Clear();
  member.Submit({InSet(1, "a")});
  EXPECT_THAT(member.reported(), ElementsAre("a"));
}

TEST(WorkerStateSurvivingSets, ARequestThatIsOpenFailsAsEverythingDoes) {
  SetMember member;
  member.Turn(ProcessSetAsked{7, ProcessSetId{0}, {1}, member.now() + kTimeout});
  member.Lose();
  ASSERT_THAT(member.All<ProcessSetAnswer>(), SizeIs(1));
  EXPECT_TRUE(IsGenerationChanged(member.All<ProcessSetAnswer>()[0].status));
}

TEST(WorkerStateSurvivingSets, ACoorddThatKnowsThemIsNotTold) {
  SetMember member;
  member.Lose();
  ASSERT_THAT(member.sent(kRecovery), SizeIs(1));
  EXPECT_FALSE(member.sent(kRecovery)[0].recovery_report().has_process_sets());
}

TEST(WorkerStateSurvivingSets, OneThatAsksIsToldAllButPairsAndHowMuchThisRankHasHeard) {
  SetMember member;
  member.Lose(/*report_sets=*/true);
  ASSERT_THAT(member.sent(kRecovery), SizeIs(1));
  const v1::ProcessSets sets = member.sent(kRecovery)[0].recovery_report().process_sets();
  EXPECT_EQ(sets.position(), 6);
  EXPECT_EQ(sets.last_process_set(), 3);
  EXPECT_FALSE(sets.more());
  ASSERT_EQ(sets.sets_size(), 2);
  EXPECT_THAT(sets.sets(0).ranks(), ElementsAre(0, 1));
  EXPECT_EQ(sets.sets(1).process_set(), 2);
}

TEST(WorkerStateSurvivingSets, ManyAreToldInPartsOfWhichTheFirstSaysTheLanes) {
  SetMember member;
  const std::vector<int32_t> ranks = {0, 2};
  for (int32_t set = 4; set < 14000; ++set) member.Change(100, set, ranks, /*position=*/set + 10);
  member.Submit({Gradient("a")});
  member.Plan({"a"});
  member.Done(1);
  member.Clear();
  member.Lose(/*report_sets=*/true);
  const std::vector<v1::WorkerMessage> parts = member.sent(kRecovery);
  ASSERT_GT(parts.size(), 1u);
  int sets = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const v1::RecoveryReport& report = parts[i].recovery_report();
    EXPECT_EQ(report.lanes_size(), i == 0 ? 1 : 0);
    EXPECT_EQ(report.process_sets().more(), i + 1 < parts.size());
    EXPECT_LE(report.ByteSizeLong(), 300u << 10);
    sets += report.process_sets().sets_size();
  }
  EXPECT_EQ(sets, 2 + 14000 - 4);
}

TEST(WorkerStateSurvivingSets, SetsWithoutAMembershipBreakTheProtocol) {
  SetMember member;
  member.Lose();
  v1::CoordinatorMessage message = member.Message();
  message.set_generation(2);
  message.mutable_process_sets();
  member.Say(message);
  EXPECT_THAT(member.state().status(),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("without its membership")));
}

TEST(WorkerStateSurvivingSets, SetsThatAreNoneEndTheWait) {
  SetMember member;
  member.Lose();
  member.NextGeneration(/*rank=*/0, /*size=*/2, /*sets_follow=*/true);
  member.SayProcessSet(1, {0, 5}, 3);
  EXPECT_FALSE(member.Enters());
  EXPECT_THAT(member.state().status(), StatusIs(absl::StatusCode::kInternal, HasSubstr("set 1")));
}

TEST(WorkerStateSurvivingSets, ANewcomerKnowsThemAndIsInNone) {
  WorkerStateOptions options = Member::Options(OnFailure::kRaise);
  options.rank = Rank{2};
  options.process_sets.set_last_process_set(1);
  options.process_sets.add_sets()->set_process_set(1);
  options.process_sets.mutable_sets(0)->add_ranks(1);
  Member member(kStart, options);
  EXPECT_THAT(member.state().process_sets(), SizeIs(1));
  member.Submit({InSet(1, "a")});
  EXPECT_THAT(member.failure(1),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("never was")));
  // Its end, for which it has asked with the others.
  member.Turn(ProcessSetAsked{5, ProcessSetId{1}, {}, member.now() + kTimeout});
  member.Change(1, 1, {});
  ASSERT_THAT(member.All<ProcessSetAnswer>(), SizeIs(1));
  EXPECT_THAT(member.All<ProcessSetAnswer>()[0].status, IsOk());
}

}  // namespace
}  // namespace coordd
