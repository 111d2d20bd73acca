// Process sets outlive their generation, and coordd dies meanwhile.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "tests/server/support/durability_fixture.h"

namespace coordd {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;
using RanksBySet = std::map<int32_t, std::vector<int32_t>>;

class CoordinatorSetsDurabilityTest : public CoordinatorDurabilityTest {
 protected:
  void SetUp() override {
    on_failure_ = v1::ON_FAILURE_RAISE;
    CoordinatorDurabilityTest::SetUp();
    for (int64_t session = 1; session <= 3; ++session) Join(session, 2, "secret", 4);
    ASSERT_THAT(Announced(Store(Join(4, 2, "secret", 4))), ElementsAre(1, 1, 1, 1));
  }
  Effects Ask(int64_t request, const std::vector<int32_t>& ranks, int32_t remove = 0) {
    Effects answered;
    for (int64_t session = 1; session <= 4; ++session) {
      v1::WorkerMessage message = MessageOf(Epoch{epoch_}, Generation{1});
      v1::ProcessSetRequest& asked = *message.mutable_process_set_request();
      asked.set_request(request);
      asked.set_remove(remove);
      asked.mutable_ranks()->Assign(ranks.begin(), ranks.end());
      answered = Do(SessionMessage{SessionId{session}, message});
    }
    return answered;
  }
  Effects Report(int64_t session, int64_t generation = 1, const v1::ProcessSets& sets = {}) {
    v1::WorkerMessage message = MessageOf(Epoch{epoch_}, Generation{generation});
    message.mutable_recovery_report();
    if (sets.last_process_set() > 0)
      *message.mutable_recovery_report()->mutable_process_sets() = sets;
    return Do(SessionMessage{SessionId{session}, message});
  }
  // This rank has heard of its generation's end, and waits.
  Effects ComeBack(int64_t session, int32_t rank, int32_t lost) {
    v1::ResumeReport report;
    report.set_over("generation 1 ended");
    report.add_departures()->set_rank(lost);
    return Resume(session, rank, report);
  }
  // What each session is told of the sets of its new generation; one without is not there.
  static std::map<int64_t, RanksBySet> Found(const Effects& effects) {
    std::map<int64_t, RanksBySet> found;
    for (const Outgoing& out : effects.outgoing) {
      const auto* deliver = std::get_if<Deliver>(&out);
      if (deliver == nullptr || !deliver->message->has_process_sets()) continue;
      for (SessionId session : deliver->to) {
        RanksBySet& sets = found[ToInt(session)];
        for (const v1::ProcessSet& set : deliver->message->process_sets().sets())
          sets[set.process_set()] = {set.ranks().begin(), set.ranks().end()};
      }
    }
    return found;
  }
  // Rank 0 is lost, the others have reported: the proposal.
  Effects LoseRank0() {
    Do(SessionEnded{SessionId{1}, "killed"});
    for (int64_t session = 2; session <= 4; ++session) Report(session);
    return Pass(options_.settling_window_after_loss);
  }
};

TEST_F(CoordinatorSetsDurabilityTest, ThoseOfTheStoredGenerationAreToldByTheNextCoordd) {
  Ask(1, {0, 1, 3});
  Ask(2, {0});
  Write(LoseRank0());
  Restart();
  ComeBack(12, 1, 0);
  ComeBack(13, 2, 0);
  const Effects told = ComeBack(14, 3, 0);
  EXPECT_THAT(Announced(told), ElementsAre(2, 2, 2));
  const RanksBySet left = {{1, {0, 2}}};
  EXPECT_THAT(Found(told), UnorderedElementsAre(Pair(12, left), Pair(13, left), Pair(14, left)));
  EXPECT_EQ(Job().process_sets(), 1);
}

TEST_F(CoordinatorSetsDurabilityTest, OfAStoredGenerationThatEndsBeforeAllHaveHeardOfItTheyGoOn) {
  Ask(1, {0, 1, 3});
  Write(LoseRank0());
  Restart();
  ComeBack(12, 1, 0);
  ComeBack(13, 2, 0);
  // Rank 3 does not come back; the others hear of their generation, its sets, and its end.
  const Effects ended = PassInTurns(options_.lease + options_.resume_grace);
  EXPECT_THAT(Found(ended), Contains(Pair(12, RanksBySet{{1, {0, 2}}})));
  EXPECT_TRUE(Aborted(ended).report_process_sets());
  Report(12, 2, ProcessSetsOf({{1, {0, 2}}}, 1, 0));
  Report(13, 2, ProcessSetsOf({{1, {0, 2}}}, 1, 0));
  const Effects formed = Store(Pass(options_.settling_window_after_loss));
  const RanksBySet left = {{1, {0}}};
  EXPECT_THAT(Found(formed), UnorderedElementsAre(Pair(12, left), Pair(13, left)));
}

TEST_F(CoordinatorSetsDurabilityTest, ACoorddThatDoesNotKnowThemAsksAndBelievesWhoHasHeardMost) {
  Restart();
  ComeBack(12, 1, 0);
  ComeBack(13, 2, 0);
  EXPECT_TRUE(Aborted(ComeBack(14, 3, 0)).report_process_sets());
  Report(12, 1, ProcessSetsOf({{1, {0, 1}}, {2, {2, 3}}}, 2, 5));
  Report(13, 1, ProcessSetsOf({{2, {2, 3}}}, 3, 9));  // 3 was added and removed, too
  Report(14, 1, ProcessSetsOf({{1, {0, 1}}}, 1, 4));
  const Effects formed = Store(Pass(options_.settling_window_after_loss));
  const RanksBySet left = {{2, {1, 2}}};
  EXPECT_THAT(Found(formed), UnorderedElementsAre(Pair(12, left), Pair(13, left), Pair(14, left)));
}

TEST_F(CoordinatorSetsDurabilityTest, AReportInPartsIsWaitedForToItsEnd) {
  Restart();
  ComeBack(12, 1, 0);
  ComeBack(13, 2, 0);
  ComeBack(14, 3, 0);
  v1::ProcessSets part = ProcessSetsOf({{1, {0, 1}}}, 2, 5);
  part.set_more(true);
  Report(12, 1, part);
  Report(13);
  Report(14);
  EXPECT_THAT(Pass(options_.settling_window_after_loss).persist, IsEmpty());
  Report(12, 1, ProcessSetsOf({{2, {1, 2}}}, 2, 5));
  const Effects formed = Store(Pass(options_.settling_window_after_loss));
  EXPECT_THAT(Found(formed), Contains(Pair(13, RanksBySet{{1, {0}}, {2, {0, 1}}})));
}

TEST_F(CoordinatorSetsDurabilityTest, WhatASurvivorSaysIsChecked) {
  Restart();
  ComeBack(12, 1, 0);
  ComeBack(13, 2, 0);
  ComeBack(14, 3, 0);
  EXPECT_THAT(
      Refusal(Report(12, 1, ProcessSetsOf({{1, {0, 9}}}, 1, 5))),
      StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr("process set 1 of 2 ranks")));
}

TEST_F(CoordinatorSetsDurabilityTest,
       ThoseThatTheGenerationBeganWithGoOnAlsoIfTheirFirstRankIsNew) {
  Ask(1, {1, 2, 3});
  Write(LoseRank0());
  Restart();
  ComeBack(12, 1, 0);
  ComeBack(13, 2, 0);
  ComeBack(14, 3, 0);
  // It is told to all again: coordd has died before they heard of it.
  Restart();
  epochs_since_ = 2;
  ComeBack(22, 1, 0);
  ComeBack(23, 2, 0);
  const Effects told = ComeBack(24, 3, 0);
  EXPECT_THAT(Found(told), Contains(Pair(22, RanksBySet{{1, {0, 1, 2}}})));
  EXPECT_EQ(Job().process_sets(), 1);
}

}  // namespace
}  // namespace coordd
