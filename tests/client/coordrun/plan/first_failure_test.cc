#include "client/coordrun/plan/first_failure.h"

#include <signal.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/start_time.h"

namespace coordd {
namespace {

constexpr ProcessEnd kExit1 = {.code = 1, .signal = 0};

class FirstFailureTest : public ::testing::Test {
 protected:
  FirstFailureTest() { state_.add_jobs()->set_name("train"); }

  v1::Departure& Departed(int32_t worker, v1::DepartureCause cause) {
    v1::Departure& departure = *state_.mutable_jobs(0)->add_departures();
    departure.set_rank(worker);
    departure.set_cause(cause);
    departure.set_launch(launches_[static_cast<size_t>(worker)]);
    return departure;
  }
  int32_t First() const {
    const auto found = FindFirstFailure(state_, "train", launches_, run_);
    return found ? found->worker : -1;
  }

  static RunOptions Options() {
    RunOptions options;
    options.np = 3;
    return options;
  }
  RunState run_{Options(), kStart};
  std::vector<std::string> launches_ = {"r.0.0", "r.1.0", "r.2.0"};
  v1::ServerState state_;
};

TEST_F(FirstFailureTest, IsWhoLeftFirstThoughOthersEndedBefore) {
  Departed(1, v1::DEPARTURE_CAUSE_PROGRAM_FAILED).set_failure("ValueError: bad batch");
  Departed(0, v1::DEPARTURE_CAUSE_LEFT);
  run_.WorkerEnded(0, kExit1, kStart);
  EXPECT_EQ(First(), 1);
  EXPECT_EQ(FindFirstFailure(state_, "train", launches_, run_)->what, "ValueError: bad batch");
  run_.FailedFirst(1, "ValueError: bad batch");
  run_.WorkerEnded(1, {.code = 3, .signal = 0}, kStart);
  run_.WorkerEnded(2, kExit1, kStart);
  EXPECT_EQ(run_.first_failure(), 1);
  EXPECT_EQ(run_.exit_status(), 3);
}

TEST_F(FirstFailureTest, IsWhoSaidGoodbyeAndThenEndedWithAnError) {
  Departed(2, v1::DEPARTURE_CAUSE_LEFT);
  Departed(1, v1::DEPARTURE_CAUSE_LEFT);
  Departed(0, v1::DEPARTURE_CAUSE_LEFT);
  run_.WorkerEnded(0, kExit1, kStart);
  run_.WorkerEnded(2, {}, kStart);
  run_.WorkerEnded(1, kExit1, kStart);
  EXPECT_EQ(First(), 1);
}

TEST_F(FirstFailureTest, IsNotWhoWasEndedByCoordrun) {
  Departed(0, v1::DEPARTURE_CAUSE_LEFT);
  Departed(1, v1::DEPARTURE_CAUSE_CONNECTION_LOST);
  run_.WorkerEnded(1, {.code = 0, .signal = SIGSEGV}, kStart);
  run_.Tick(kStart + absl::Seconds(3));  // SIGTERM
  run_.WorkerEnded(0, {.code = 0, .signal = SIGTERM}, kStart + absl::Seconds(3));
  EXPECT_EQ(First(), 1);
}

TEST_F(FirstFailureTest, CountsTheLastDepartureOfEach) {
  Departed(0, v1::DEPARTURE_CAUSE_LEFT);  // they were members once before
  Departed(1, v1::DEPARTURE_CAUSE_LEFT);
  Departed(1, v1::DEPARTURE_CAUSE_PROGRAM_FAILED);
  Departed(0, v1::DEPARTURE_CAUSE_LEFT);
  run_.WorkerEnded(0, kExit1, kStart);
  run_.WorkerEnded(1, kExit1, kStart);
  EXPECT_EQ(First(), 1);
}

TEST_F(FirstFailureTest, IsNobodyWhereCoorddHasSeenNoFailure) {
  Departed(0, v1::DEPARTURE_CAUSE_LEFT);
  run_.WorkerEnded(1, kExit1, kStart);  // it never joined
  EXPECT_EQ(First(), -1);
}

TEST_F(FirstFailureTest, OneThatDoesNotEndByItselfHasStatus1) {
  run_.WorkerEnded(0, {.code = 7, .signal = 0}, kStart);
  run_.FailedFirst(1, "RuntimeError");
  run_.Tick(kStart + absl::Seconds(3));
  run_.WorkerEnded(1, {.code = 0, .signal = SIGKILL}, kStart + absl::Seconds(9));
  EXPECT_EQ(run_.exit_status(), 1);
}

}  // namespace
}  // namespace coordd
