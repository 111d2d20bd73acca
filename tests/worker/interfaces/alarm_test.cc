#include "worker/interfaces/alarm.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <thread>

#include "common/base/owned_fd.h"
#include "common/base/thread.h"
#include "worker/interfaces/idle_wait.h"

namespace coordd {
namespace {

// Far longer than any test: who sleeps as long was not woken.
constexpr int64_t kUntilWoken = 300'000'000'000;

struct AlarmPipe {
  AlarmPipe() {
    std::array<int, 2> ends;
    EXPECT_EQ(pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK), 0);
    reads = OwnedFd(ends[0]);
    writes = OwnedFd(ends[1]);
  }
  void Write() const { EXPECT_EQ(write(writes.get(), "x", 1), 1); }
  OwnedFd reads, writes;
};

TEST(Alarm, WakesByARingOrTheDescriptor) {
  const AlarmPipe pipe;
  Alarm alarm;
  ASSERT_TRUE(alarm.is_usable());
  alarm.Listen();
  std::thread rings = StartThread("rings", [&] { alarm.Ring(); });
  EXPECT_TRUE(alarm.Sleep(pipe.reads.get(), kUntilWoken));
  rings.join();
  std::thread writes = StartThread("writes", [&] { pipe.Write(); });
  EXPECT_TRUE(alarm.Sleep(pipe.reads.get(), kUntilWoken));
  writes.join();
  EXPECT_TRUE(alarm.Sleep(pipe.reads.get(), kUntilWoken));  // it was not read
}

TEST(Alarm, SleepsAsLongAsItIsTold) {
  const AlarmPipe pipe;
  Alarm alarm;
  alarm.Ring();  // nobody listens
  alarm.Listen();
  EXPECT_FALSE(alarm.Sleep(pipe.reads.get(), 1000));
  alarm.Ring();
  alarm.Ring();
  EXPECT_TRUE(alarm.Sleep(pipe.reads.get(), kUntilWoken));
  EXPECT_FALSE(alarm.Sleep(pipe.reads.get(), 1000));  // both were heard
  alarm.StopListening();
  EXPECT_FALSE(alarm.is_listened_at());
}

// However close the two come to each other: neither waits for ever.
TEST(Alarm, LosesNoRing) {
  const AlarmPipe pipe;
  Alarm alarm;
  constexpr int kRounds = 20000;
  std::atomic<int> said = 0, heard = 0;
  std::thread rings = StartThread("rings", [&] {
    for (int i = 1; i <= kRounds; ++i) {
      said.store(i, std::memory_order_release);
      alarm.Ring();
      while (heard.load(std::memory_order_acquire) < i) std::this_thread::yield();
    }
  });
  for (int i = 1; i <= kRounds; ++i) {
    alarm.Listen();
    while (said.load(std::memory_order_acquire) < i)
      ASSERT_TRUE(alarm.Sleep(pipe.reads.get(), kUntilWoken));
    alarm.StopListening();
    heard.store(i, std::memory_order_release);
  }
  rings.join();
}

// It looks once more behind Listen, then sleeps there and nowhere else.
TEST(Alarm, IsWhereWhoWaitsSleeps) {
  static std::atomic<int> sleeps;
  sleeps = 0;
  const WaitCalls calls = {WaitCalls::Real().now_nanoseconds, [] {}, [](int64_t) { ++sleeps; },
                           WaitCalls::Real().sleep_at};
  const AlarmPipe pipe;
  Alarm alarm;
  IdleWait wait(1, 2, calls);
  BellUse use;
  use.descriptor = pipe.reads.get();
  use.alarm = &alarm;
  while (!wait.sleeps_next()) wait.Wait(use);
  EXPECT_FALSE(alarm.is_listened_at());
  wait.Wait(use);
  EXPECT_TRUE(alarm.is_listened_at());
  alarm.Ring();
  wait.Wait(use);
  pipe.Write();
  wait.Wait(use);
  EXPECT_EQ(sleeps, 0);
  // Without a descriptor, as while something is to be sent, it polls.
  use.descriptor = -1;
  wait.Wait(use);
  EXPECT_EQ(sleeps, 1);
  EXPECT_FALSE(alarm.is_listened_at());
  use.descriptor = pipe.reads.get();
  wait.Wait(use);
  EXPECT_TRUE(alarm.is_listened_at());
  wait.Reset();
  EXPECT_FALSE(alarm.is_listened_at());
}

}  // namespace
}  // namespace coordd
