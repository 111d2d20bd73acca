#include "server/generation/wake_rule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>

#include "server/generation/generation_state.h"
#include "server/members/node_members.h"
#include "tests/server/support/builders.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using Worth = WakeRule::Worth;

class WakeRuleTest : public ::testing::Test {
 protected:
  // What had come before it knew of the generation is not counted: it begins a turn later.
  WakeRuleTest() { Turn(); }
  Worth Hear(int64_t stream, int32_t words = 1) { return rule_.Hear({SessionId{stream}, words}); }
  MembersReports Reports(bool asked, bool none_pending) const {
    return {.generation = Generation{generation_},
            .members = &members_,
            .all_are_asked = asked,
            .none_is_pending = none_pending};
  }
  // At the end of a turn, with what is pending then.
  bool Decided(bool asked = true, bool none_pending = true) {
    return rule_.Decided({Reports(asked, none_pending)});
  }
  bool Turn(bool asked = true, bool none_pending = true) {
    rule_.Taken();
    return Decided(asked, none_pending);
  }

  WakeRule rule_;
  int64_t generation_ = 1;
  std::vector<SessionId> members_ = {SessionId{1}, SessionId{2}, SessionId{3}};
};

TEST_F(WakeRuleTest, IsATurnForEachReportOfWhomNothingIsKnown) {
  Turn();
  EXPECT_EQ(Hear(4), Worth::kTurn);
}

TEST_F(WakeRuleTest, DoesNotWaitForWhomItMayHaveMissed) {
  WakeRule rule;
  rule.Taken();
  EXPECT_EQ(rule.Hear({SessionId{1}}), Worth::kTurn);  // of whom it does not know yet
  rule.Decided({Reports(true, true)});
  EXPECT_EQ(rule.Hear({SessionId{2}}), Worth::kTurn);
  rule.Taken();
  rule.Decided({Reports(true, false)});
  EXPECT_EQ(rule.Hear({SessionId{3}}), Worth::kTurn) << "all have reported";
}

TEST_F(WakeRuleTest, CountsReportsThatCameWithSomethingElse) {
  Turn();
  EXPECT_EQ(rule_.Hear({SessionId{1}, 1, /*is_nothing_else=*/false}), Worth::kTurn);
  EXPECT_EQ(Hear(2), Worth::kWaits);
  EXPECT_EQ(Hear(3), Worth::kCompletes);
}

TEST_F(WakeRuleTest, WaitsForTheLastOfAllMembers) {
  EXPECT_FALSE(Turn());
  EXPECT_EQ(Hear(3), Worth::kWaits);
  EXPECT_EQ(Hear(1), Worth::kWaits);
  EXPECT_EQ(Hear(1), Worth::kWaits);
  EXPECT_EQ(Hear(2), Worth::kCompletes);
  EXPECT_EQ(Hear(2), Worth::kTurn) << "all have reported: it may be what is missing";
}

TEST_F(WakeRuleTest, CountsFromTheRoundsBeginWhatTurnsInBetweenHaveTaken) {
  Turn();
  EXPECT_EQ(Hear(1), Worth::kWaits);
  EXPECT_FALSE(Turn(/*asked=*/true, /*none_pending=*/false));
  EXPECT_EQ(Hear(2), Worth::kWaits);
  EXPECT_FALSE(Turn(/*asked=*/true, /*none_pending=*/false));
  EXPECT_EQ(Hear(3), Worth::kCompletes);
}

TEST_F(WakeRuleTest, CountsForTheNextRoundWhatComesDuringATurn) {
  Turn();
  for (int64_t stream : {1, 2, 3}) Hear(stream);
  rule_.Taken();
  EXPECT_EQ(Hear(1), Worth::kWaits);
  EXPECT_EQ(Hear(2), Worth::kWaits);
  EXPECT_FALSE(Decided());
  EXPECT_EQ(Hear(1), Worth::kWaits);
  EXPECT_EQ(Hear(3), Worth::kCompletes);
}

TEST_F(WakeRuleTest, TakesAnotherTurnForWhatHasCompletedDuringOne) {
  Turn();
  rule_.Taken();
  for (int64_t stream : {1, 2, 3}) EXPECT_EQ(Hear(stream), Worth::kWaits);
  EXPECT_TRUE(Decided());
}

TEST_F(WakeRuleTest, TakesAnotherTurnWhenOthersAreNotWaitedForAnyMore) {
  Turn();
  rule_.Taken();
  EXPECT_EQ(Hear(1), Worth::kWaits);
  EXPECT_TRUE(Decided(/*asked=*/false));
  EXPECT_EQ(Hear(2), Worth::kTurn);
  rule_.Taken();
  EXPECT_EQ(Hear(1), Worth::kWaits);
  EXPECT_TRUE(rule_.Decided({})) << "the generation is gone";
  EXPECT_EQ(Hear(1), Worth::kTurn);
  EXPECT_EQ(rule_.streams(), 0u);
}

TEST_F(WakeRuleTest, IsATurnForEachReportAsLongAsSomethingIsPendingOfAll) {
  Turn();
  for (int64_t stream : {1, 2, 3}) Hear(stream);
  EXPECT_FALSE(Turn(/*asked=*/true, /*none_pending=*/false));
  EXPECT_EQ(Hear(1), Worth::kTurn);
}

TEST_F(WakeRuleTest, BeginsAnewWithTheNextGeneration) {
  Turn();
  Hear(1);
  generation_ = 2;
  members_ = {SessionId{1}, SessionId{3}};
  Turn();
  Turn();
  EXPECT_EQ(rule_.streams(), 2u);
  EXPECT_EQ(Hear(2), Worth::kTurn);
  EXPECT_EQ(Hear(1), Worth::kWaits);
  EXPECT_EQ(Hear(3), Worth::kCompletes);
}

TEST_F(WakeRuleTest, ANodeHasSpokenWhenAllItsMembersMayHave) {
  const NodeMembers node(/*node=*/9);
  members_ = {SessionId{1}, node.IdOf(1), node.IdOf(2), node.IdOf(3)};
  generation_ = 2;
  Turn();
  Turn();
  EXPECT_EQ(rule_.streams(), 2u);
  EXPECT_EQ(Hear(1), Worth::kWaits);
  EXPECT_EQ(Hear(9, 2), Worth::kWaits);
  EXPECT_EQ(Hear(9, 1), Worth::kCompletes);
}

TEST_F(WakeRuleTest, NoJobWaitsForAnother) {
  const std::vector<SessionId> others = {SessionId{7}, SessionId{8}};
  MembersReports second = Reports(true, true);
  second.members = &others;
  for (int turn = 0; turn < 2; ++turn) {
    rule_.Taken();
    rule_.Decided({Reports(true, true), second});
  }
  EXPECT_EQ(Hear(7), Worth::kWaits);
  EXPECT_EQ(Hear(1), Worth::kWaits);
  EXPECT_EQ(Hear(8), Worth::kCompletes);
}

// Members report whenever they like, and may do so again before the others have; a plan needs a
// report of each. Turns are taken when the rule says so, and at times without that.
TEST(WakeRule, NeverHoldsBackWhatCanBePlanned) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto pick = [&](size_t bound) { return static_cast<size_t>(random()) % bound; };
    const size_t ranks = 1 + pick(6), on_node = pick(ranks + 1);
    const NodeMembers node(/*node=*/100);
    std::vector<SessionId> members;
    for (size_t rank = 0; rank < ranks; ++rank) {
      const auto number = static_cast<int32_t>(rank + 1);
      members.push_back(rank < on_node ? node.IdOf(number) : SessionId{number});
    }
    WakeRule rule;
    std::vector<int> known(ranks), queued(ranks);  // reports that are not planned
    bool in_turn = false, due = true;
    const auto can_plan = [&] {
      for (size_t rank = 0; rank < ranks; ++rank)
        if (known[rank] + queued[rank] == 0) return false;
      return true;
    };
    int plans = 0;
    for (int step = 0; step < 400; ++step) {
      if (in_turn && pick(3) == 0) {
        while (std::all_of(known.begin(), known.end(), [](int n) { return n > 0; })) {
          for (int& reports : known) --reports;
          ++plans;
        }
        const bool none = std::all_of(known.begin(), known.end(), [](int n) { return n == 0; });
        const MembersReports reports = {.generation = Generation{1},
                                        .members = &members,
                                        .all_are_asked = true,
                                        .none_is_pending = none};
        due = rule.Decided({reports}) || due;
        in_turn = false;
      } else if (!in_turn && (due || pick(20) == 0)) {
        rule.Taken();
        for (size_t rank = 0; rank < ranks; ++rank) known[rank] += std::exchange(queued[rank], 0);
        in_turn = true;
        due = false;
      } else {
        const size_t rank = pick(ranks);
        if (known[rank] + queued[rank] > 3) continue;
        ++queued[rank];
        due = rule.Hear({NodeMembers::StreamOf(members[rank]), 1}) != Worth::kWaits || due;
      }
      if (!in_turn && can_plan()) {
        ASSERT_TRUE(due) << "step " << step;
      }
    }
    EXPECT_GT(plans, 0);
  }
}

v1::WorkerMessage Reporting(const TensorSpec& spec) {
  v1::WorkerMessage message = MessageOf(Epoch{1}, Generation{1});
  ToProto(spec, message.mutable_tensors_ready()->add_tensors());
  return message;
}

TEST(WakeRule, KnowsWhatConcernsTheSetOfAllRanksOnly) {
  EXPECT_TRUE(WakeRule::IsReport(Reporting(Gradient("a", {4}))));
  v1::WorkerMessage cached = MessageOf(Epoch{1}, Generation{1});
  cached.mutable_tensors_ready()->add_cached()->set_process_set(0);
  EXPECT_TRUE(WakeRule::IsReport(cached));
  cached.mutable_tensors_ready()->add_cached()->set_process_set(2);
  EXPECT_FALSE(WakeRule::IsReport(cached));
  TensorSpec other = Gradient("a", {4});
  other.process_set = ProcessSetId{2};
  EXPECT_FALSE(WakeRule::IsReport(Reporting(other)));
  TensorSpec pair = Gradient("a", {4});
  pair.kind = CollectiveKind::kSend;
  pair.peer_rank = 1;
  EXPECT_FALSE(WakeRule::IsReport(Reporting(pair)));
  v1::WorkerMessage heartbeat = MessageOf(Epoch{1}, Generation{1});
  heartbeat.mutable_heartbeat();
  EXPECT_FALSE(WakeRule::IsReport(heartbeat));
}

// What a generation says of its members.
class WhoHasReportedTest : public ::testing::Test {
 protected:
  void Report(int32_t rank, const TensorSpec& spec) {
    v1::TensorsReady ready;
    ToProto(spec, ready.add_tensors());
    EXPECT_THAT(state_.OnTensorsReady(Rank{rank}, ready, {now_, effects_}), IsOk());
  }
  void Tick() { state_.Tick({now_, effects_}); }

  ServerOptions options_;
  const absl::Time now_ = absl::FromUnixSeconds(1000);
  GenerationState state_{{"train", Epoch{1}, Generation{1}, /*schedules=*/true},
                         options_,
                         {SessionId{5}, SessionId{6}}};
  Effects effects_;
};

TEST_F(WhoHasReportedTest, NothingIsPendingBeforeAReportAndAfterThePlan) {
  EXPECT_TRUE(state_.WhoHasReported().all_are_asked);
  EXPECT_TRUE(state_.WhoHasReported().none_is_pending);
  Report(0, Gradient("a", {4}));
  EXPECT_FALSE(state_.WhoHasReported().none_is_pending);
  Report(1, Gradient("a", {4}));
  EXPECT_FALSE(state_.WhoHasReported().none_is_pending) << "it is not planned yet";
  Tick();
  EXPECT_TRUE(state_.WhoHasReported().none_is_pending);
  EXPECT_EQ(*state_.WhoHasReported().members, std::vector<SessionId>({SessionId{5}, SessionId{6}}));
}

TEST_F(WhoHasReportedTest, WhoHasJoinedIsNotWaitedFor) {
  TensorSpec join = Gradient(std::string(kJoinName), {});
  join.kind = CollectiveKind::kJoin;
  Report(0, join);
  EXPECT_FALSE(state_.WhoHasReported().all_are_asked);
}

TEST_F(WhoHasReportedTest, WhatAScheduleSaysIsNotReported) {
  for (int step = 0; step < 50 && state_.schedules() == 0; ++step) {
    EXPECT_TRUE(state_.WhoHasReported().all_are_asked);
    for (int32_t rank : {0, 1}) Report(rank, Gradient("a", {4}));
    Tick();
  }
  ASSERT_GT(state_.schedules(), 0);
  EXPECT_FALSE(state_.WhoHasReported().all_are_asked);
}

TEST_F(WhoHasReportedTest, WhatHasEndedWaitsForNobody) {
  state_.End(effects_);
  EXPECT_FALSE(state_.WhoHasReported().all_are_asked);
}

}  // namespace
}  // namespace coordd
