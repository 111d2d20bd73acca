#include "common/base/clock.h"

#include <gtest/gtest.h>

#include <thread>

#include "absl/time/clock.h"
#include "common/base/thread.h"

namespace coordd {
namespace {

TEST(RealClock, DoesNotGoBackwards) {
  absl::Time last = Clock::Real().Now();
  for (int i = 0; i < 1000; ++i) {
    const absl::Time now = Clock::Real().Now();
    ASSERT_GE(now, last);
    last = now;
  }
}

TEST(RealClock, StartsAtTheWallClock) {
  EXPECT_LT(absl::AbsDuration(Clock::Real().Now() - absl::Now()), absl::Minutes(1));
}

TEST(RealClock, AwaitLooksAtTheConditionFirst) {
  Mutex mu;
  CondVar cv;
  MutexLock lock(&mu);
  EXPECT_TRUE(Clock::Real().Await(
      &mu, &cv, [] { return true; }, absl::InfinitePast()));
}

TEST(RealClock, AwaitEndsAtTheDeadlineAndNotBefore) {
  Mutex mu;
  CondVar cv;
  MutexLock lock(&mu);
  const absl::Time deadline = Clock::Real().Now() + absl::Milliseconds(5);
  EXPECT_FALSE(Clock::Real().Await(
      &mu, &cv, [] { return false; }, deadline));
  EXPECT_GE(Clock::Real().Now(), deadline);
}

TEST(RealClock, AwaitReturnsOnceTheConditionHolds) {
  Mutex mu;
  CondVar cv;
  bool set = false;
  std::thread setter = StartThread("setter", [&] {
    {
      MutexLock lock(&mu);
      set = true;
    }
    cv.NotifyOne();
  });
  {
    MutexLock lock(&mu);
    EXPECT_TRUE(Clock::Real().Await(
        &mu, &cv, [&] { return set; }, absl::InfiniteFuture()));
  }
  setter.join();
}

}  // namespace
}  // namespace coordd
