// A worker's session with coordd: lost, looked for, taken up again, or over.
#include "worker/protocol/coordinator_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "tests/support/start_time.h"

namespace coordd {
namespace {

CoordinatorSession::Terms LastingTerms() {
  CoordinatorSession::Terms terms;
  terms.generation = Generation{3};
  terms.lasting = true;
  terms.coordinators = 2;
  return terms;
}

class CoordinatorSessionTest : public ::testing::Test {
 protected:
  WorkerTurn At(absl::Time now) { return WorkerTurn{now, effects_}; }
  void Detach(absl::Time now) { session_.Detach(absl::UnavailableError("broken"), now); }
  bool Sends() {
    const size_t before = effects_.size();
    session_.Send({}, At(kStart));
    return effects_.size() > before;
  }

  std::vector<WorkerEffect> effects_;
  CoordinatorSession session_{LastingTerms(), Epoch{7}, 5, 1, 1, kStart};
};

TEST_F(CoordinatorSessionTest, StampsWhatItSends) {
  session_.Send({}, At(kStart));
  ASSERT_EQ(effects_.size(), 1u);
  const v1::WorkerMessage& sent = std::get<SendMessage>(effects_[0]).message;
  EXPECT_EQ(sent.epoch(), 7);
  EXPECT_EQ(sent.generation(), 3);
}

TEST_F(CoordinatorSessionTest, TakesMessagesInOrder) {
  EXPECT_FALSE(session_.TakeSequence(1));
  EXPECT_TRUE(session_.TakeSequence(2));
  EXPECT_FALSE(session_.TakeSequence(4));
  EXPECT_EQ(session_.received_sequence(), 2);
}

TEST_F(CoordinatorSessionTest, OnlyALostConnectionIsResumed) {
  EXPECT_TRUE(session_.MayResume(absl::UnavailableError("")));
  EXPECT_TRUE(session_.MayResume(absl::UnknownError("")));
  EXPECT_FALSE(session_.MayResume(absl::PermissionDeniedError("")));
  session_.End();
  EXPECT_FALSE(session_.MayResume(absl::UnavailableError("")));
  EXPECT_TRUE(session_.attached());
  EXPECT_FALSE(Sends());
}

TEST_F(CoordinatorSessionTest, TriesAnotherAddressAtOnceAndPausesWhenAllWereTried) {
  Detach(kStart);
  EXPECT_FALSE(session_.attached());
  EXPECT_FALSE(Sends());
  const absl::Time first = session_.NextDeadline();
  EXPECT_FALSE(session_.TakeAttempt(At(first - absl::Nanoseconds(1))));
  ASSERT_TRUE(session_.TakeAttempt(At(first)));
  EXPECT_EQ(std::get<OpenStream>(effects_.back()).stream, 1);
  EXPECT_TRUE(session_.resuming());
  EXPECT_FALSE(session_.IsLatest(0));
  EXPECT_TRUE(session_.TakeSequence(1));
  Detach(first);
  EXPECT_TRUE(session_.TakeAttempt(At(first)));
  Detach(first);
  EXPECT_FALSE(session_.TakeAttempt(At(first)));
}

TEST_F(CoordinatorSessionTest, GivesUpAfterTheTimeout) {
  Detach(kStart);
  const absl::Time end = kStart + LastingTerms().resume_timeout;
  EXPECT_FALSE(session_.HasTimedOut(end - absl::Seconds(1)));
  EXPECT_TRUE(session_.HasTimedOut(end));
  EXPECT_EQ(session_.TimeoutText(), "coordd did not come back within 300 s: broken");
  session_.StopTrying();
  EXPECT_TRUE(session_.ended());
  EXPECT_FALSE(session_.HasTimedOut(end));
}

TEST_F(CoordinatorSessionTest, AdoptsTheEpochOfALaterCoorddAndNoneOfAnEarlierOne) {
  EXPECT_EQ(session_.Hears(0, 7).value(), true);
  EXPECT_EQ(session_.Hears(0, 6).value(), false);
  EXPECT_EQ(session_.Hears(1, 7).value(), false);
  Detach(kStart);
  EXPECT_EQ(session_.Hears(0, 7).value(), false);
  ASSERT_TRUE(session_.TakeAttempt(At(session_.NextDeadline())));
  EXPECT_EQ(session_.Hears(1, 6).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(session_.Hears(1, 9).value(), true);
  EXPECT_EQ(session_.epoch(), Epoch{9});
}

TEST_F(CoordinatorSessionTest, ThatItIsAwayIsNewsOnceEachTime) {
  EXPECT_FALSE(session_.TakeAway(kStart + absl::Hours(1)).has_value());
  for (absl::Time lost : {kStart, kStart + absl::Hours(1)}) {
    const absl::Time due = lost + CoordinatorSession::kAwayIsNews;
    Detach(lost);
    EXPECT_FALSE(session_.TakeAway(due - absl::Milliseconds(1)).has_value());
    const std::optional<CoordinatorAway> away = session_.TakeAway(due);
    ASSERT_TRUE(away.has_value());
    EXPECT_EQ(away->since, CoordinatorSession::kAwayIsNews);
    EXPECT_EQ(away->why.message(), "broken");
    EXPECT_EQ(away->patience, LastingTerms().resume_timeout);
    EXPECT_FALSE(session_.TakeAway(due + absl::Minutes(1)).has_value());
    session_.Reattach(due);
  }
}

TEST_F(CoordinatorSessionTest, ANewSessionHasAWholeLease) {
  const absl::Time later = kStart + absl::Seconds(30);
  Detach(kStart);
  ASSERT_TRUE(session_.TakeAttempt(At(later)));
  session_.Resumed(6);
  session_.Reattach(later);
  EXPECT_EQ(session_.number(), 6);
  EXPECT_EQ(session_.heartbeats().lease_until(), later + LastingTerms().pace.lease);
  EXPECT_EQ(session_.heartbeats().next_heartbeat(), later);
  EXPECT_EQ(session_.NextDeadline(), absl::InfiniteFuture());
}

TEST(Heartbeats, TheLeaseIsCountedFromTheHeartbeatThatWasAnswered) {
  Heartbeats heartbeats(absl::Seconds(10), kStart);
  heartbeats.Sent({}, kStart + absl::Milliseconds(20));
  EXPECT_EQ(heartbeats.lag(), absl::Milliseconds(20));
  EXPECT_EQ(heartbeats.next_heartbeat(), kStart + absl::Milliseconds(2020));
  v1::LeaseAck ack;
  ack.set_echoed_sent_ns(absl::ToUnixNanos(kStart + absl::Seconds(2)));
  ack.mutable_lease()->set_seconds(10);
  ack.set_wants_stack(true);
  heartbeats.OnAck(ack, kStart + absl::Seconds(3));
  EXPECT_EQ(heartbeats.lease_until(), kStart + absl::Seconds(12));
  EXPECT_TRUE(heartbeats.TakeStackWanted());
  EXPECT_FALSE(heartbeats.TakeStackWanted());
  // An answer to an older one takes nothing back.
  ack.set_echoed_sent_ns(absl::ToUnixNanos(kStart));
  heartbeats.OnAck(ack, kStart + absl::Seconds(4));
  EXPECT_EQ(heartbeats.lease_until(), kStart + absl::Seconds(12));
}

TEST(Heartbeats, WhoHasSleptHearsWhatWasSaidBeforeItsLeaseEnds) {
  Heartbeats heartbeats(absl::Seconds(10), kStart);
  heartbeats.NoticeSleep(/*attached=*/true, absl::Seconds(10), kStart);
  const absl::Time awake = kStart + absl::Seconds(60);
  heartbeats.NoticeSleep(/*attached=*/true, absl::Seconds(10), awake);
  EXPECT_EQ(heartbeats.lease_until(), awake + absl::Seconds(5));
}

}  // namespace
}  // namespace coordd
