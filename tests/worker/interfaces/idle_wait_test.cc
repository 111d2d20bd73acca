// How a thread waits, on a clock and a kernel of the test's: what it is to do next is read off the
// calls that it makes.
#include "worker/interfaces/idle_wait.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "common/base/thread.h"

namespace coordd {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Le;

// A machine of one thread. Each test has one of its own, with the thread, since what IdleWait
// learns is the thread's.
struct Machine {
  int64_t now_ns = 1'000'000'000;
  int64_t yield_takes_ns = 300;
  int yields = 0;
  std::vector<int64_t> slept_ns;          // without a bell
  std::vector<int64_t> slept_at_bell_ns;  // at most
};
Machine machine;

const WaitCalls kMachine = {[] { return machine.now_ns; },
                            [] {
                              ++machine.yields;
                              machine.now_ns += machine.yield_takes_ns;
                            },
                            [](int64_t ns) { machine.slept_ns.push_back(ns); },
                            [](std::atomic<uint32_t>&, uint32_t, int64_t ns) {
                              machine.slept_at_bell_ns.push_back(ns);
                              return false;
                            }};

template <typename Body>
void OnFreshThread(Body body) {
  machine = Machine();
  StartThread("waits", body).join();
}

// Until it sleeps, as far as the last wait before.
void WaitUntilItSleeps(IdleWait& wait, const BellUse& use = {}) {
  for (int i = 0; i < 10'000 && !wait.sleeps_next(); ++i) wait.Wait(use);
  ASSERT_TRUE(wait.sleeps_next());
}

constexpr int32_t kAlone = 1, kCores = 2, kTooMany = 4;

TEST(IdleWait, SpinsThenYieldsThenSleepsLonger) {
  OnFreshThread([] {
    IdleWait wait(kAlone, kCores, kMachine);
    EXPECT_FALSE(wait.Wait());
    EXPECT_EQ(machine.yields, 0);
    WaitUntilItSleeps(wait);
    EXPECT_GT(machine.yields, 0);
    EXPECT_TRUE(machine.slept_ns.empty());
    for (int i = 0; i < 200; ++i) EXPECT_TRUE(wait.Wait());
    EXPECT_EQ(machine.slept_ns.size(), 200u);
    EXPECT_LT(machine.slept_ns.front(), machine.slept_ns.back());
    EXPECT_EQ(machine.slept_ns.back(), IdleWait::kSleepNanosecondsMax);
  });
}

TEST(IdleWait, DoesNotSpinWithMoreThreadsThanCores) {
  OnFreshThread([] {
    IdleWait wait(kTooMany, kCores, kMachine);
    EXPECT_TRUE(wait.Wait());
    EXPECT_EQ(machine.yields, 1);
  });
}

TEST(IdleWait, YieldsAtOnceAmongPollersThatItWasNotToldOf) {
  OnFreshThread([] {
    // Each yield lets another one poll.
    machine.yield_takes_ns = 5'000;
    {
      IdleWait wait(kAlone, kCores, kMachine);
      WaitUntilItSleeps(wait);
    }
    const int before = machine.yields;
    IdleWait next(kAlone, kCores, kMachine);
    EXPECT_TRUE(next.Wait());
    EXPECT_EQ(machine.yields, before + 1);
    // Again after each reset: that is what it is about.
    next.Reset();
    EXPECT_TRUE(next.Wait());
    EXPECT_EQ(machine.yields, before + 2);
  });
}

TEST(IdleWait, SpinsAgainWhenYieldsLetNobodyRunAnyMore) {
  OnFreshThread([] {
    machine.yield_takes_ns = 5'000;
    IdleWait wait(kAlone, kCores, kMachine);
    WaitUntilItSleeps(wait);
    machine.yield_takes_ns = 300;
    wait.Reset();
    WaitUntilItSleeps(wait);
    const int before = machine.yields;
    wait.Reset();
    EXPECT_FALSE(wait.Wait());
    EXPECT_EQ(machine.yields, before);
  });
}

TEST(IdleWait, AFewYieldsThatLetOthersRunDoNotKeepItFromSpinning) {
  OnFreshThread([] {
    IdleWait wait(kAlone, kCores, kMachine);
    while (machine.yields < 100) wait.Wait();
    machine.yield_takes_ns = 5'000;
    while (machine.yields < 103) wait.Wait();
    wait.Reset();
    EXPECT_FALSE(wait.Wait());
  });
}

TEST(IdleWait, DoesNotYieldForAWhileAfterAYieldHasCostASlice) {
  OnFreshThread([] {
    machine.yield_takes_ns = 4'000'000;
    IdleWait wait(kAlone, kCores, kMachine);
    WaitUntilItSleeps(wait);
    EXPECT_EQ(machine.yields, 1);
    EXPECT_TRUE(machine.slept_ns.empty());
    wait.Wait();
    EXPECT_EQ(machine.slept_ns.size(), 1u);
    // Later it tries again.
    machine.now_ns += 600'000'000;
    wait.Reset();
    WaitUntilItSleeps(wait);
    EXPECT_EQ(machine.yields, 2);
  });
}

TEST(IdleWait, ListensThenLetsLookOnceMoreThenSleepsAtTheBellShortlyThenLong) {
  OnFreshThread([] {
    Doorbell bell{};
    const BellUse use = {&bell, /*suffices=*/true};
    IdleWait wait(kAlone, kCores, kMachine);
    WaitUntilItSleeps(wait, use);
    EXPECT_EQ(bell.listens, 0u);
    wait.Wait(use);
    EXPECT_EQ(bell.listens, 1u);
    EXPECT_TRUE(machine.slept_at_bell_ns.empty());  // the caller looks
    for (int i = 0; i < 3; ++i) wait.Wait(use);
    EXPECT_THAT(machine.slept_at_bell_ns,
                ElementsAre(IdleWait::kFirstBellNanosecondsMax, IdleWait::kBellNanosecondsMax,
                            IdleWait::kBellNanosecondsMax));
    EXPECT_TRUE(machine.slept_ns.empty());
  });
}

TEST(IdleWait, DoesNotSleepWhenRungBetweenListeningAndSleeping) {
  OnFreshThread([] {
    Doorbell bell{};
    const BellUse use = {&bell, /*suffices=*/true};
    IdleWait wait(kAlone, kCores, kMachine);
    WaitUntilItSleeps(wait, use);
    wait.Wait(use);
    bell.Ring();
    wait.Wait(use);
    EXPECT_TRUE(machine.slept_at_bell_ns.empty());
  });
}

TEST(IdleWait, StopsListeningOnResetAndWhenItEnds) {
  OnFreshThread([] {
    Doorbell bell{};
    const BellUse use = {&bell, /*suffices=*/true};
    {
      IdleWait wait(kAlone, kCores, kMachine);
      WaitUntilItSleeps(wait, use);
      wait.Wait(use);
      wait.Reset();
      EXPECT_EQ(bell.listens, 0u);
      EXPECT_FALSE(wait.Wait(use));  // and begins to spin
      WaitUntilItSleeps(wait, use);
      wait.Wait(use);
      EXPECT_EQ(bell.listens, 1u);
    }
    EXPECT_EQ(bell.listens, 0u);
  });
}

TEST(IdleWait, StopsListeningAtABellThatItIsNotToUseAnyMore) {
  OnFreshThread([] {
    Doorbell first{}, second{};
    IdleWait wait(kAlone, kCores, kMachine);
    WaitUntilItSleeps(wait);
    wait.Wait({&first, true});
    wait.Wait({&second, true});
    EXPECT_EQ(first.listens, 0u);
    EXPECT_EQ(second.listens, 1u);
    wait.Wait();
    EXPECT_EQ(second.listens, 0u);
    EXPECT_EQ(machine.slept_ns.size(), 1u);
  });
}

TEST(IdleWait, SleepsNoLongerThanWithoutABellWhereItDoesNotSuffice) {
  OnFreshThread([] {
    Doorbell bell{};
    const BellUse use = {&bell, /*suffices=*/false};
    IdleWait wait(kAlone, kCores, kMachine);
    WaitUntilItSleeps(wait, use);
    for (int i = 0; i < 200; ++i) wait.Wait(use);
    EXPECT_EQ(machine.slept_at_bell_ns.size(), 199u);
    EXPECT_THAT(machine.slept_at_bell_ns, Each(Le(IdleWait::kSleepNanosecondsMax)));
  });
}

}  // namespace
}  // namespace coordd
