#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"
#include "tests/worker/support/state_member.h"

namespace coordd {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

v1::Leave GoodbyeOf(const Member& member) {
  const auto sent = member.sent(v1::WorkerMessage::kLeave);
  return sent.size() == 1 ? sent[0].leave() : v1::Leave();
}

TEST(WorkerStateLeaving, TellsOfAFailureBeforeWhatIsExecutingEnds) {
  Member member;
  member.Submit({Gradient("a"), Gradient("b")});
  member.Plan({"a"});
  member.Turn(LeaveRequested{.failure = "ValueError: bad batch"});
  EXPECT_EQ(GoodbyeOf(member).failure(), "ValueError: bad batch");
  EXPECT_THAT(member.failure(2),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("ValueError: bad batch")));
  EXPECT_THAT(member.All<AbortExecution>(), IsEmpty());
  member.Turn(StreamEnded{absl::OkStatus()});
  EXPECT_THAT(member.All<AbortExecution>(), SizeIs(1));
  EXPECT_THAT(member.All<Stopped>(), IsEmpty());
  member.Done(1, absl::AbortedError("aborted"));
  EXPECT_THAT(member.All<Stopped>(), SizeIs(1));
  EXPECT_THAT(member.sent(v1::WorkerMessage::kLeave), SizeIs(1));
}

TEST(WorkerStateLeaving, IsNoFailureOnceTheOthersHaveFailedIt) {
  Member member;
  member.Abort(v1::DEPARTURE_CAUSE_CONNECTION_LOST, "", /*in_flight=*/true);
  member.Turn(LeaveRequested{.failure = "HorovodInternalError: rank 2 was lost"});
  EXPECT_THAT(member.sent(v1::WorkerMessage::kLeave), SizeIs(1));
  EXPECT_EQ(GoodbyeOf(member).failure(), "");
}

TEST(WorkerStateLeaving, IsAFailureWhereOthersGoOn) {
  Member member(kStart, Member::Options(OnFailure::kRaise));
  member.Abort(v1::DEPARTURE_CAUSE_CONNECTION_LOST, "", /*in_flight=*/true, /*reforms=*/true);
  member.Turn(LeaveRequested{.failure = "HorovodInternalError: rank 2 was lost"});
  EXPECT_THAT(GoodbyeOf(member).failure(), HasSubstr("rank 2 was lost"));
}

TEST(WorkerStateLeaving, FailsWithoutACoorddThatHearsOfIt) {
  Member member(kStart, Member::LastingOptions());
  member.Submit({Gradient("a")});
  member.Plan({"a"});
  member.Turn(StreamEnded{absl::UnavailableError("coordd is gone")});
  member.Turn(LeaveRequested{.failure = "ValueError"});
  EXPECT_THAT(member.All<AbortExecution>(), SizeIs(1));
  member.Done(1, absl::AbortedError("aborted"));
  EXPECT_THAT(member.All<Stopped>(), SizeIs(1));
}

TEST(WorkerStateLeaving, HoldsItsGoodbyeUntilItIsAsked) {
  Member member;
  member.Submit({Gradient("a")});
  member.Plan({"a"});
  member.Turn(LeaveRequested{.held_until = member.now() + absl::Seconds(5)});
  EXPECT_THAT(member.All<WorkFinished>(), IsEmpty());
  member.Done(1);
  EXPECT_THAT(member.All<WorkFinished>(), SizeIs(1));
  member.Advance(absl::Seconds(1));
  EXPECT_THAT(member.All<WorkFinished>(), SizeIs(1));
  EXPECT_THAT(member.sent(v1::WorkerMessage::kLeave), IsEmpty());
  member.Turn(LeaveRequested{});
  EXPECT_THAT(member.sent(v1::WorkerMessage::kLeave), SizeIs(1));
  EXPECT_EQ(GoodbyeOf(member).failure(), "");
}

TEST(WorkerStateLeaving, TurnsAGoodbyeThatIsHeldIntoAFailure) {
  Member member;
  member.Turn(LeaveRequested{.held_until = member.now() + absl::Seconds(5)});
  member.Turn(LeaveRequested{.failure = "ValueError: bad batch"});
  EXPECT_EQ(GoodbyeOf(member).failure(), "ValueError: bad batch");
}

TEST(WorkerStateLeaving, HoldsItsGoodbyeNoLongerThanItWasAskedTo) {
  Member member;
  const absl::Time until = member.now() + absl::Milliseconds(1500);
  member.Turn(LeaveRequested{.held_until = until});
  EXPECT_LE(member.state().NextDeadline(), until);
  member.Advance(absl::Milliseconds(1500));
  EXPECT_THAT(member.sent(v1::WorkerMessage::kLeave), SizeIs(1));
}

TEST(WorkerStateLeaving, HoldsNoGoodbyeForOthersThatHaveLostSomebody) {
  Member member;
  member.Turn(LeaveRequested{.held_until = member.now() + absl::Seconds(5)});
  member.Abort(v1::DEPARTURE_CAUSE_CONNECTION_LOST, "", /*in_flight=*/true);
  EXPECT_THAT(member.sent(v1::WorkerMessage::kLeave), SizeIs(1));
}

}  // namespace
}  // namespace coordd
