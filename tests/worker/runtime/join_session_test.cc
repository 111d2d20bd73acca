#include "worker/runtime/join_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/protocol/proto_convert.h"
#include "tests/support/hang_limit.h"
#include "tests/support/status_matchers.h"
#include "tests/worker/support/fake_coordinator_link.h"

namespace coordd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class JoinSessionTest : public ::testing::Test {
 protected:
  absl::StatusOr<JoinedSession> Join(absl::Duration timeout = kHangLimit) {
    JoinRequest request;
    request.join.set_job("test");
    request.coordinator = "launch:29650";
    request.deadline = Clock::Real().Now() + timeout;
    request.probe = probe_;
    Random random(1);
    return JoinSession(
        request, [this] { return std::make_unique<FakeCoordinatorLink>(coordinator_); }, inbox_,
        Clock::Real(), random);
  }

  static v1::CoordinatorMessage Waiting(int32_t joined) {
    v1::CoordinatorMessage message;
    message.mutable_waiting()->set_joined(joined);
    message.mutable_waiting()->set_min_workers(4);
    return message;
  }
  static v1::CoordinatorMessage Membership() {
    v1::CoordinatorMessage message;
    message.set_generation(1);
    message.mutable_membership()->set_size(4);
    return message;
  }

  FakeCoordinator coordinator_;
  std::function<absl::Status()> probe_;
  ControlInbox inbox_{16, Clock::Real()};
};

TEST_F(JoinSessionTest, WaitsForTheProcessSetsThatFollow) {
  coordinator_.on_start = [this] {
    v1::CoordinatorMessage place = Membership();
    place.mutable_membership()->set_process_sets_follow(true);
    coordinator_.Say(place);
    v1::CoordinatorMessage part;
    part.mutable_process_sets()->set_more(true);
    part.mutable_process_sets()->add_sets()->set_process_set(1);
    coordinator_.Say(part);
    part.mutable_process_sets()->set_more(false);
    part.mutable_process_sets()->set_last_process_set(2);
    part.mutable_process_sets()->mutable_sets(0)->set_process_set(2);
    coordinator_.Say(part);
    v1::CoordinatorMessage plan;
    plan.mutable_plan();
    coordinator_.Say(plan);
  };
  auto session = Join();
  ASSERT_THAT(session, IsOk());
  EXPECT_EQ(session->membership.sequence(), 3);
  EXPECT_EQ(session->process_sets.sets_size(), 2);
  EXPECT_EQ(session->process_sets.last_process_set(), 2);
  EXPECT_THAT(session->early, SizeIs(1));
}

TEST_F(JoinSessionTest, SendsItsJoinAndReturnsItsPlaceWithWhatCameBehindIt) {
  coordinator_.on_start = [this] {
    coordinator_.Say(Waiting(1));
    coordinator_.Say(Membership());
    v1::CoordinatorMessage plan;
    plan.mutable_plan();
    coordinator_.Say(plan);
  };
  auto session = Join();
  ASSERT_THAT(session, IsOk());
  const v1::Join join = coordinator_.Receive().join();
  EXPECT_EQ(join.job(), "test");
  EXPECT_TRUE(join.has_asking_for());
  EXPECT_EQ(FromProto(join.asking_for()), absl::ZeroDuration());
  EXPECT_EQ(session->membership.sequence(), 2);
  EXPECT_EQ(session->membership.membership().size(), 4);
  EXPECT_THAT(session->early, SizeIs(1));
}

TEST_F(JoinSessionTest, SaysOnOneLineWhatCoorddWaitsFor) {
  coordinator_.on_start = [this] {
    v1::CoordinatorMessage waiting = Waiting(4);
    waiting.mutable_waiting()->set_reason("a drain\nforged");
    coordinator_.Say(waiting);
  };
  EXPECT_THAT(Join(absl::Milliseconds(300)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       "job test has not started in time: a drain forged"));
}

TEST_F(JoinSessionTest, SaysWhatToDoWhereOthersAreMissing) {
  coordinator_.on_start = [this] { coordinator_.Say(Waiting(2)); };
  EXPECT_THAT(Join(absl::Milliseconds(300)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("2 of 4 workers have joined"),
                             HasSubstr("expected the others to run, too"))));
}

TEST_F(JoinSessionTest, SaysOfTheOthersWhatCoorddDoes) {
  coordinator_.on_start = [this] {
    v1::CoordinatorMessage waiting = Waiting(2);
    waiting.mutable_waiting()->set_reason("2 of at least 4 workers have joined, 1 has gone again");
    coordinator_.Say(waiting);
  };
  EXPECT_THAT(Join(absl::Milliseconds(300)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("2 of at least 4 workers have joined, 1 has gone again"),
                             HasSubstr("expected the others to run, too"))));
}

TEST_F(JoinSessionTest, TriesAgainWhileCoorddCannotBeReached) {
  coordinator_.on_start = [this] {
    if (coordinator_.streams() < 3) {
      coordinator_.End(absl::UnavailableError("connection refused"));
    } else {
      coordinator_.Say(Membership());
    }
  };
  EXPECT_THAT(Join(), IsOk());
  EXPECT_EQ(coordinator_.streams(), 3);
}

TEST_F(JoinSessionTest, TriesAgainWhenCoorddStops) {
  coordinator_.on_start = [this] {
    if (coordinator_.streams() == 1) {
      v1::CoordinatorMessage message;
      message.mutable_shutdown()->set_reason("restart");
      coordinator_.Say(message);
    } else {
      coordinator_.Say(Membership());
    }
  };
  EXPECT_THAT(Join(), IsOk());
}

TEST_F(JoinSessionTest, GivesUpAtItsDeadlineWithTheLastReason) {
  coordinator_.on_start = [this] {
    coordinator_.End(absl::UnavailableError("connection refused"));
  };
  EXPECT_THAT(Join(absl::Milliseconds(1)),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("launch:29650"), HasSubstr("connection refused"))));
}

TEST_F(JoinSessionTest, RemembersTheReasonWhileAnotherAttemptIsNotAnswered) {
  coordinator_.on_start = [this] {
    if (coordinator_.streams() == 1) coordinator_.End(absl::UnavailableError("connection refused"));
  };
  EXPECT_THAT(Join(absl::Milliseconds(300)),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("connection refused")));
}

TEST_F(JoinSessionTest, IsFinalWhereTheProbeSaysThatWaitingIsNoUse) {
  coordinator_.on_start = [this] {
    coordinator_.End(absl::UnavailableError("failed to connect to all addresses; last error: x"));
  };
  probe_ = [] { return absl::FailedPreconditionError("what listens there is no coordd"); };
  EXPECT_THAT(Join(), StatusIs(absl::StatusCode::kFailedPrecondition,
                               "job test cannot be joined: what listens there is no coordd"));
  EXPECT_EQ(coordinator_.streams(), 1);
}

TEST_F(JoinSessionTest, EndsWithWhatCoorddSaidAndNotWithHowALaterTryWasClosed) {
  coordinator_.on_start = [this] {
    coordinator_.End(
        absl::UnavailableError(coordinator_.streams() == 1 ? "coordd is full" : "Socket closed"));
  };
  EXPECT_THAT(Join(absl::Milliseconds(300)),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("coordd is full")));
}

TEST_F(JoinSessionTest, IsRefusedByWhoeverEndsTheSessionWellBeforeMembership) {
  coordinator_.on_start = [this] { coordinator_.End(absl::OkStatus()); };
  EXPECT_THAT(Join(), StatusIs(absl::StatusCode::kInternal,
                               HasSubstr("has ended the session without a reason")));
  coordinator_.on_start = [this] {
    coordinator_.Say(Waiting(1));
    coordinator_.End(absl::OkStatus());
  };
  EXPECT_THAT(Join(), StatusIs(absl::StatusCode::kInternal,
                               HasSubstr("has ended the session without a reason")));
}

TEST_F(JoinSessionTest, SaysSinceWhenItAsks) {
  coordinator_.on_start = [this] {
    if (coordinator_.streams() == 1) {
      coordinator_.End(absl::UnavailableError("the job is full"));
    } else {
      coordinator_.Say(Membership());
    }
  };
  ASSERT_THAT(Join(), IsOk());  // only its second stream takes messages
  EXPECT_GT(FromProto(coordinator_.Receive().join().asking_for()), absl::ZeroDuration());
}

TEST_F(JoinSessionTest, SaysHowManyCame) {
  coordinator_.on_start = [this] { coordinator_.Say(Waiting(3)); };
  EXPECT_THAT(Join(absl::Milliseconds(1)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("job test"), HasSubstr("3 of 4 workers"))));
}

TEST_F(JoinSessionTest, SaysAtItsDeadlineWhatCoorddWaitsFor) {
  coordinator_.on_start = [this] {
    v1::CoordinatorMessage message = Waiting(4);
    message.mutable_waiting()->set_reason("generation 7 could not be stored: the disk is full");
    coordinator_.Say(message);
  };
  EXPECT_THAT(Join(absl::Milliseconds(20)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       "job test has not started in time: generation 7 could not be stored: the "
                       "disk is full"));
}

TEST_F(JoinSessionTest, ReportsARefusalAsOneWithoutTryingAgain) {
  coordinator_.on_start = [this] {
    coordinator_.End(absl::UnauthenticatedError("wrong token for job test"));
  };
  EXPECT_THAT(Join(), StatusIs(absl::StatusCode::kUnauthenticated,
                               "coordd refused this worker: wrong token for job test"));
  EXPECT_EQ(coordinator_.streams(), 1);
}

TEST_F(JoinSessionTest, DoesNotTakeABrokenStreamForARefusal) {
  coordinator_.on_start = [this] { coordinator_.End(absl::InternalError("RST_STREAM")); };
  EXPECT_THAT(Join(), StatusIs(absl::StatusCode::kInternal, "RST_STREAM"));
}

TEST_F(JoinSessionTest, RefusesAStreamThatBeginsWithAPlan) {
  coordinator_.on_start = [this] {
    v1::CoordinatorMessage message;
    message.mutable_plan();
    coordinator_.Say(message);
  };
  EXPECT_THAT(Join(), StatusIs(absl::StatusCode::kInternal, HasSubstr("before its membership")));
}

}  // namespace
}  // namespace coordd
