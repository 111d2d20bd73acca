#include "server/service/state_copies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/registry.h>

#include <atomic>

#include "server/metrics/server_metrics.h"
#include "server/service/coordinator.h"
#include "tests/support/fake_clock.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

// A clock by which some time passes whenever somebody looks at it.
class SlowClock : public Clock {
 public:
  absl::Time Now() override {
    clock_.Advance(a_look_);
    return clock_.Now();
  }
  bool Await(Mutex* mu, CondVar* cv, absl::FunctionRef<bool()> condition,
             absl::Time deadline) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    return clock_.Await(mu, cv, condition, deadline);
  }
  std::atomic<absl::Duration> a_look_ = absl::ZeroDuration();

 private:
  FakeClock clock_;
};

class StateCopiesTest : public testing::Test {
 protected:
  ~StateCopiesTest() override { coordinator_.Stop("the test ends"); }

  void CopiesTake(absl::Duration time) {
    coordinators_.a_look_ = time;
    coordinator_.Start({
        .deliver = [](const Deliver&) {},
        .close_session = [](const CloseSession&) {},
        .session_ended = [](SessionId) {},
        .store_reply = [](StoreReply&&) {},
        .event = [](const Event&) {},
        .tick = [](absl::Time) {},
        .next_deadline = [] { return absl::InfiniteFuture(); },
    });
  }
  StateCopies::State Get() {
    auto state = copies_.Get();
    EXPECT_THAT(state.status(), IsOk());
    return *std::move(state);
  }

  SlowClock coordinators_;
  FakeClock clock_{absl::FromUnixSeconds(10'000'000)};  // no deadline of its own passes there
  prometheus::Registry registry_;
  ServerMetrics metrics_{registry_, clock_.Now()};
  Coordinator coordinator_{ServerOptions(), Epoch(7), coordinators_, metrics_};
  StateCopies copies_{coordinator_, clock_,
                      [](v1::ServerState* state) { state->set_version("completed"); }};
};

TEST_F(StateCopiesTest, WhatCostsLittleIsCopiedForWhoeverAsks) {
  CopiesTake(absl::ZeroDuration());
  const StateCopies::State first = Get();
  EXPECT_EQ(first->epoch(), 7);
  EXPECT_EQ(first->version(), "completed");
  EXPECT_NE(Get(), first);
}

TEST_F(StateCopiesTest, WhatCostsMuchIsToldAgainForNineTimesThat) {
  const absl::Duration kCopy = 2 * StateCopies::kFree;
  CopiesTake(kCopy);
  const StateCopies::State first = Get();
  EXPECT_EQ(Get(), first);
  clock_.Advance((StateCopies::kShare - 1) * kCopy - absl::Nanoseconds(1));
  EXPECT_EQ(Get(), first);
  clock_.Advance(absl::Hours(1));
  EXPECT_NE(Get(), first);
}

TEST_F(StateCopiesTest, WithoutAStateSaysSoAndAsksAgain) {
  CopiesTake(absl::ZeroDuration());
  coordinator_.Stop("it is over");
  EXPECT_EQ(copies_.Get().status().code(), absl::StatusCode::kUnavailable);
  clock_.Advance(absl::Milliseconds(1));
  EXPECT_EQ(copies_.Get().status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace coordd
