// Who was asked to leave is, also by the coordd that takes the place of the one that asked.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "tests/server/support/durability_fixture.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

class CoordinatorDrainDurabilityTest : public CoordinatorDurabilityTest {
 protected:
  void SetUp() override {
    on_failure_ = v1::ON_FAILURE_RAISE;
    CoordinatorDurabilityTest::SetUp();
    for (int64_t session = 1; session <= 2; ++session) Join(session, 1, "secret", 3);
    ASSERT_THAT(Announced(Store(Join(3, 1, "secret", 3))), ElementsAre(1, 1, 1));
  }
  Effects Dismiss(v1::DismissAction action, int32_t rank, double grace_seconds = 30) {
    DismissCall call{CallId{++last_call_}, {}};
    call.request.set_action(action);
    call.request.set_rank(rank);
    call.request.set_grace_seconds(grace_seconds);
    call.request.set_asked_by("alice@login1");
    return Do(call);
  }
  // Of all workers, with force.
  Effects DismissNode(v1::DismissAction action) {
    DismissCall call{CallId{++last_call_}, {}};
    call.request.set_action(action);
    call.request.set_node("node0");
    call.request.set_force(true);
    call.request.set_asked_by("alice@login1");
    return Do(call);
  }
  Effects Drain(int32_t rank) { return Dismiss(v1::DISMISS_ACTION_DRAIN, rank); }
  // Of what is said to workers: to whom, and how long they have; negative: they may stay.
  static std::vector<std::pair<int64_t, double>> Notices(const Effects& effects) {
    std::vector<std::pair<int64_t, double>> notices;
    for (const Outgoing& out : effects.outgoing) {
      const auto* deliver = std::get_if<Deliver>(&out);
      if (deliver == nullptr || !deliver->message->has_drain_notice()) continue;
      const v1::DrainNotice& notice = deliver->message->drain_notice();
      notices.emplace_back(ToInt(deliver->to.front()),
                           notice.lifted() ? -1 : absl::ToDoubleSeconds(FromProto(notice.grace())));
    }
    return notices;
  }
  static std::optional<absl::Status> Answer(const Effects& effects) {
    for (const Outgoing& out : effects.outgoing)
      if (const auto* answer = std::get_if<DismissAnswer>(&out)) return answer->status;
    return std::nullopt;
  }
  Effects Goodbye(int64_t session, int64_t epoch, bool drained) {
    v1::WorkerMessage message = MessageOf(Epoch{epoch}, Generation{1});
    message.mutable_leave()->set_drained(drained);
    return Do(SessionMessage{SessionId{session}, message});
  }
  Effects Report(int64_t session) {
    v1::WorkerMessage message = MessageOf(Epoch{epoch_}, Generation{1});
    message.mutable_recovery_report();
    return Do(SessionMessage{SessionId{session}, message});
  }

  int64_t last_call_ = 0;
};

TEST_F(CoordinatorDrainDurabilityTest, NobodyHearsOfItBeforeItIsStored) {
  const Effects asked = Drain(1);
  EXPECT_THAT(Notices(asked), IsEmpty());
  EXPECT_FALSE(Answer(asked).has_value());
  const Effects stored = Store(asked);
  EXPECT_THAT(Notices(stored), ElementsAre(Pair(2, 30)));
  EXPECT_THAT(Answer(stored), testing::Optional(IsOk()));
}

TEST_F(CoordinatorDrainDurabilityTest, WhatCannotBeStoredIsNotAsked) {
  const Effects asked = Drain(1);
  ASSERT_EQ(asked.persist.size(), 1u);
  const Effects failed = Do(Persisted{
      "train", {}, absl::ResourceExhaustedError("the disk is full"), asked.persist[0].call});
  EXPECT_THAT(Notices(failed), IsEmpty());
  ASSERT_TRUE(Answer(failed).has_value());
  EXPECT_THAT(*Answer(failed), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("disk is full")));
  EXPECT_FALSE(Job().workers(1).draining());
}

TEST_F(CoordinatorDrainDurabilityTest, WhatCannotBeStoredClosesNoNodeAndOpensNone) {
  const auto fails = [this](const Effects& asked) {
    return Do(Persisted{
        "train", {}, absl::ResourceExhaustedError("the disk is full"), asked.persist.at(0).call});
  };
  fails(DismissNode(v1::DISMISS_ACTION_DRAIN));
  EXPECT_THAT(Job().drained_nodes(), IsEmpty());
  Store(DismissNode(v1::DISMISS_ACTION_DRAIN));
  fails(DismissNode(v1::DISMISS_ACTION_DRAIN));
  EXPECT_THAT(Job().drained_nodes(), ElementsAre("node0"));
  // That is said at once: it does not wait for a disk.
  const Effects lifted = fails(DismissNode(v1::DISMISS_ACTION_LIFT));
  EXPECT_THAT(Job().drained_nodes(), IsEmpty());
  EXPECT_THAT(Answer(lifted), testing::Optional(StatusIs(absl::StatusCode::kUnavailable,
                                                         HasSubstr("until coordd is started"))));
}

TEST_F(CoordinatorDrainDurabilityTest, AnotherCoorddAsksAgain) {
  Store(Drain(1));
  Restart();
  EXPECT_THAT(Notices(Resume(11, 0)), IsEmpty());
  EXPECT_THAT(Notices(Resume(12, 1)), IsEmpty());
  const Effects resumed = Resume(13, 2);
  EXPECT_THAT(Resumed(resumed), ElementsAre(11, 12, 13));
  // In full: no clock was there to count meanwhile.
  EXPECT_THAT(Notices(resumed), ElementsAre(Pair(12, 30)));
  const Effects over = PassInTurns(absl::Seconds(9));
  EXPECT_FALSE(Aborted(over).reforms());
  const Effects left = Goodbye(12, epoch_, /*drained=*/false);
  EXPECT_TRUE(Aborted(left).reforms());
  EXPECT_THAT(Aborted(left).reason(),
              HasSubstr("rank 1 (host node0, pid 4711) was drained: alice@login1"));
  Write(left);
  Report(11);
  EXPECT_THAT(Announced(Store(Report(13))), IsEmpty());
  const Effects formed = Store(PassInTurns(options_.settling_window_after_loss));
  EXPECT_THAT(Announced(formed), ElementsAre(2, 2));
  Write(formed);
  // Nothing of it is left.
  EXPECT_EQ(disk_.count("drain/train"), 0u);
}

// It was evicted when its time was over; coordd died before anybody had heard of that.
TEST_F(CoordinatorDrainDurabilityTest, AnotherCoorddAsksAgainWhoIsGoneForTheOneBeforeOnly) {
  Store(Dismiss(v1::DISMISS_ACTION_DRAIN, 1, /*grace_seconds=*/1));
  const Effects evicted = PassInTurns(absl::Seconds(2));
  EXPECT_THAT(Aborted(evicted).reason(), HasSubstr("rank 1 (host node0, pid 4711) was evicted"));
  Write(evicted);
  Restart();
  Resume(11, 0);
  Resume(12, 1);
  EXPECT_THAT(Notices(Resume(13, 2)), ElementsAre(Pair(12, 1)));
}

TEST_F(CoordinatorDrainDurabilityTest, WhatWasLiftedStaysLifted) {
  Store(Drain(1));
  const Effects lifted = Store(Dismiss(v1::DISMISS_ACTION_LIFT, 1));
  EXPECT_THAT(Answer(lifted), testing::Optional(IsOk()));
  Restart();
  for (int32_t rank = 0; rank < 3; ++rank) EXPECT_THAT(Notices(Resume(11 + rank, rank)), IsEmpty());
}

TEST_F(CoordinatorDrainDurabilityTest, WhoLeavesBeforeTheOthersAreBackDoesNotEndTheirJob) {
  Store(Drain(1));
  Restart();
  Resume(12, 1);
  const Effects left = Goodbye(12, epoch_ - 1, /*drained=*/true);
  EXPECT_FALSE(Aborted(left).in_flight()) << "nobody is there to hear it";
  EXPECT_THAT(Refusal(left), IsOk());
  Resume(11, 0);
  const Effects ended = Resume(13, 2);
  EXPECT_TRUE(Aborted(ended).reforms());
  ASSERT_EQ(Aborted(ended).departures_size(), 1);
  EXPECT_EQ(Aborted(ended).departures(0).cause(), v1::DEPARTURE_CAUSE_DRAINED);
  Report(11);
  Report(13);
  EXPECT_THAT(Announced(Store(PassInTurns(options_.settling_window_after_loss))),
              ElementsAre(2, 2));
}

TEST_F(CoordinatorDrainDurabilityTest, WhoNeverComesBackWasDrainedAllTheSame) {
  Store(Drain(1));
  Restart();
  Resume(11, 0);
  Resume(13, 2);
  const Effects ended = PassInTurns(options_.lease + options_.resume_grace);
  EXPECT_TRUE(Aborted(ended).reforms());
  ASSERT_EQ(Job().departures_size(), 1);
  EXPECT_EQ(Job().departures(0).cause(), v1::DEPARTURE_CAUSE_LEASE_EXPIRED);
  EXPECT_TRUE(Job().departures(0).drained());
}

TEST_F(CoordinatorDrainDurabilityTest, ADrainedNodeTakesNewWorkersOnceItIsLifted) {
  const Effects asked = DismissNode(v1::DISMISS_ACTION_DRAIN);
  EXPECT_THAT(Answer(Store(asked)), testing::Optional(IsOk()));
  EXPECT_THAT(Job().drained_nodes(), ElementsAre("node0"));
  const auto refused =
      StatusIs(absl::StatusCode::kFailedPrecondition,
               HasSubstr("node node0 is drained: alice@login1 has asked its workers"));
  EXPECT_THAT(Refusal(Join(4, 1, "secret", 3)), refused);
  // By the one that takes its place, too; but its members are not new.
  Restart();
  for (int32_t rank = 0; rank < 2; ++rank) Resume(11 + rank, rank);
  EXPECT_THAT(Resumed(Resume(13, 2)), ElementsAre(11, 12, 13));
  EXPECT_THAT(Refusal(Join(5, 1, "secret", 3)), refused);
  const Effects lifted = Store(DismissNode(v1::DISMISS_ACTION_LIFT));
  EXPECT_THAT(Answer(lifted), testing::Optional(IsOk()));
  EXPECT_THAT(Job().drained_nodes(), IsEmpty());
  EXPECT_EQ(disk_.count("drain/train"), 0u);
  Goodbye(13, epoch_, /*drained=*/true);
  EXPECT_THAT(Refusal(Join(6, 1, "secret", 3)), IsOk());
}

TEST_F(CoordinatorDrainDurabilityTest, WhoIsMeantIsListedByRank) {
  Restart();
  Resume(11, 2);
  Resume(12, 0);
  Resume(13, 1);
  const Effects asked = Store(DismissNode(v1::DISMISS_ACTION_DRAIN));
  std::vector<int32_t> ranks;
  for (const Outgoing& out : asked.outgoing) {
    if (const auto* answer = std::get_if<DismissAnswer>(&out))
      for (const v1::DismissedWorker& worker : answer->reply.workers())
        ranks.push_back(worker.rank());
  }
  EXPECT_THAT(ranks, ElementsAre(0, 1, 2));
}

TEST_F(CoordinatorDrainDurabilityTest, AnEmptyNodeCanBeGivenBack) {
  v1::WorkerMessage elsewhere;
  *elsewhere.mutable_join() = JoinOf("elsewhere", "node1");
  elsewhere.mutable_join()->set_on_failure(on_failure_);
  ASSERT_THAT(Refusal(Do(SessionMessage{SessionId{4}, elsewhere})),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("full")));
  Store(DismissNode(v1::DISMISS_ACTION_DRAIN));
  for (int64_t session = 1; session <= 2; ++session)
    Write(Goodbye(session, epoch_, /*drained=*/true));
  ASSERT_THAT(Refusal(Do(SessionMessage{SessionId{5}, elsewhere})), IsOk());
  Write(Goodbye(3, epoch_, /*drained=*/true));
  EXPECT_THAT(Answer(DismissNode(v1::DISMISS_ACTION_DRAIN)),
              testing::Optional(StatusIs(absl::StatusCode::kNotFound,
                                         HasSubstr("has no worker on a node node0"))));
  const Effects lifted = Store(DismissNode(v1::DISMISS_ACTION_LIFT));
  EXPECT_THAT(Answer(lifted), testing::Optional(IsOk()));
  EXPECT_THAT(Job().drained_nodes(), IsEmpty());
}

TEST_F(CoordinatorDrainDurabilityTest, ADrainedRankClosesNoNode) {
  Store(Drain(1));
  EXPECT_THAT(Job().drained_nodes(), IsEmpty());
  Goodbye(2, epoch_, /*drained=*/true);
  EXPECT_THAT(Refusal(Join(4, 1, "secret", 3)), IsOk());
}

TEST_F(CoordinatorDrainDurabilityTest, BeforeAllAreBackNobodyIsAsked) {
  Restart();
  Resume(11, 0);
  ASSERT_TRUE(Answer(Drain(1)).has_value());
  EXPECT_THAT(*Answer(Drain(1)),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("have not all come back")));
}

TEST_F(CoordinatorDrainDurabilityTest, WhoLostPatienceWhileCoorddSleptIsAskedAgain) {
  Store(Drain(1));
  const Effects asked = Drain(2);
  epochs_since_ = 0;
  Pass(2 * options_.lease);
  EXPECT_THAT(Text(Do(SessionEnded{SessionId{1}, "reset"}), Event::Kind::kJobRestored),
              HasSubstr("since coordd was not running"));
  EXPECT_THAT(Notices(Resume(11, 0)), IsEmpty());
  EXPECT_THAT(Notices(Resume(12, 1)), IsEmpty());
  const Effects stored = Store(asked);
  EXPECT_THAT(Notices(stored), IsEmpty()) << "it is not back";
  EXPECT_THAT(Answer(stored), testing::Optional(IsOk()));
  const Effects resumed = Resume(13, 2);
  EXPECT_THAT(Resumed(resumed), ElementsAre(11, 12, 13));
  EXPECT_THAT(Notices(resumed), ElementsAre(Pair(12, 30), Pair(13, 30)));
}

// Too late after one sleep of coordd's, and in time after the next.
TEST_F(CoordinatorDrainDurabilityTest, WhoWasTakenForLostIsAskedAgainWhenItComesBack) {
  Store(Drain(0));
  epochs_since_ = 0;
  Pass(2 * options_.lease);
  Do(SessionEnded{SessionId{1}, "reset"});
  Resume(12, 1);
  Resume(13, 2);
  const Effects lost = PassInTurns(options_.lease + options_.resume_grace);
  EXPECT_THAT(Aborted(lost).reason(), HasSubstr("rank 0 (host node0, pid 4711) was lost"));
  Pass(2 * options_.lease);
  Do(SessionEnded{SessionId{12}, "reset"});
  v1::ResumeReport over;
  over.set_over(Aborted(lost).reason());
  EXPECT_THAT(Notices(Resume(21, 0)), IsEmpty());
  Resume(22, 1, over);
  const Effects back = Resume(23, 2, over);
  EXPECT_TRUE(Aborted(back).reforms());
  EXPECT_THAT(Notices(back), ElementsAre(Pair(21, 30)));
}

TEST_F(CoordinatorDrainDurabilityTest, TheEndOfTheJobIsTheAnswerToWhatIsStillBeingStored) {
  const Effects asked = Drain(1);
  Leave(1, 1);
  const Effects left = Leave(2, 1);
  const Effects ended = Leave(3, 1);
  ASSERT_TRUE(Answer(ended).has_value());
  EXPECT_THAT(*Answer(ended), StatusIs(absl::StatusCode::kAborted, HasSubstr("has ended")));
  EXPECT_FALSE(Answer(Store(asked)).has_value());
  Write(left);
  Write(ended);
  EXPECT_EQ(disk_.count("drain/train"), 0u);
}

}  // namespace
}  // namespace coordd
