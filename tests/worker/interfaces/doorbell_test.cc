// Doorbells: no ring is lost, whoever is first. Sleeps are counted, not timed: one that had to be
// ended by its limit has lost a ring.
#include "worker/interfaces/doorbell.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <thread>

#include "common/base/thread.h"

namespace coordd {
namespace {

// What two processes that take turns have in common.
struct Table {
  struct Side {
    Doorbell bell;
    alignas(64) std::atomic<int64_t> said;
    alignas(64) int64_t sleeps = 0;
    int64_t unheard = 0;
  };
  Side sides[2];
  std::atomic<bool> failed = false;
};

constexpr int64_t kShort = 20'000;
constexpr int64_t kNoLimit = 20'000'000'000;  // against hangs only

// Says 1, 2, ... and waits after each for the other side to say as much. One side is a little later
// than the other, by something else in each turn, so that rings meet all moments of going to sleep;
// and has in its cache what it looks at, as whoever rings often does.
void TakeTurns(Table& table, int self, int64_t turns) {
  Table::Side& own = table.sides[self];
  Table::Side& other = table.sides[1 - self];
  const auto there = [&](int64_t turn) {
    return other.said.load(std::memory_order_acquire) >= turn || table.failed;
  };
  for (int64_t turn = 1; turn <= turns && !table.failed; ++turn) {
    // Now and then so late that the short sleep is over.
    const int64_t late = turn % 50 == self ? 300'000 : turn * (self == 0 ? 37 : 101) % 257;
    for (int64_t i = 0; i < late; ++i)
      static_cast<void>(other.bell.listens.load(std::memory_order_relaxed));
    own.said.store(turn, std::memory_order_release);
    other.bell.Ring();
    if (there(turn)) continue;
    own.bell.Listen();
    if (!there(turn)) own.bell.Sleep(kShort);
    while (!there(turn)) {
      ++own.sleeps;
      if (own.bell.Sleep(kNoLimit)) continue;
      ++own.unheard;
      table.failed = true;
    }
    own.bell.StopListening();
  }
}

class SharedTable {
 public:
  SharedTable()
      : memory_(mmap(nullptr, sizeof(Table), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                     0)),
        table_(new (memory_) Table()) {}
  ~SharedTable() { munmap(memory_, sizeof(Table)); }
  SharedTable(const SharedTable&) = delete;
  SharedTable& operator=(const SharedTable&) = delete;
  Table& operator*() const { return *table_; }
  Table* operator->() const { return table_; }

 private:
  void* const memory_;
  Table* const table_;
};

TEST(Doorbell, LosesNoRingBetweenProcesses) {
  constexpr int64_t kTurns = 20'000;
  const SharedTable table;
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    TakeTurns(*table, 1, kTurns);
    _exit(0);
  }
  TakeTurns(*table, 0, kTurns);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_FALSE(table->failed);
  EXPECT_EQ(table->sides[0].unheard + table->sides[1].unheard, 0);
  EXPECT_EQ(table->sides[0].said, kTurns);
  EXPECT_EQ(table->sides[1].said, kTurns);
  EXPECT_GT(table->sides[0].sleeps + table->sides[1].sleeps, 0);
}

TEST(Doorbell, LosesNoRingBetweenThreads) {
  constexpr int64_t kTurns = 20'000;
  Table table{};
  std::thread other = StartThread("other", [&] { TakeTurns(table, 1, kTurns); });
  TakeTurns(table, 0, kTurns);
  other.join();
  EXPECT_FALSE(table.failed);
  EXPECT_EQ(table.sides[0].unheard + table.sides[1].unheard, 0);
}

// The listener's steps one by one, with what the kernel would do counted.
int sleeps;
Doorbell* rung_in_sleep;
const WaitCalls kCounting = {[] { return int64_t{0}; }, [] {}, [](int64_t) {},
                             [](std::atomic<uint32_t>& word, uint32_t expected, int64_t) {
                               EXPECT_EQ(word.load(), expected);
                               ++sleeps;
                               if (rung_in_sleep != nullptr) rung_in_sleep->Ring();
                               return false;
                             }};

class DoorbellSteps : public testing::Test {
 protected:
  DoorbellSteps() {
    sleeps = 0;
    rung_in_sleep = nullptr;
  }
  Doorbell bell_{};
};

TEST_F(DoorbellSteps, SomebodyWhoDoesNotListenIsNotRung) {
  bell_.Ring();
  EXPECT_EQ(bell_.rung, 0u);
  bell_.Listen();
  bell_.StopListening();
  bell_.Ring();
  EXPECT_EQ(bell_.rung, 0u);
}

TEST_F(DoorbellSteps, ARingBeforeTheSleepKeepsItFromSleeping) {
  bell_.Listen();
  bell_.Ring();
  EXPECT_TRUE(bell_.Sleep(1, kCounting));
  EXPECT_EQ(sleeps, 0);
  // That one is used up.
  EXPECT_FALSE(bell_.Sleep(1, kCounting));
  EXPECT_EQ(sleeps, 1);
}

TEST_F(DoorbellSteps, ARingInTheSleepIsTold) {
  rung_in_sleep = &bell_;
  bell_.Listen();
  EXPECT_TRUE(bell_.Sleep(1, kCounting));
  EXPECT_EQ(sleeps, 1);
}

TEST_F(DoorbellSteps, WhatWasRungForAnEarlierListenerDoesNotCount) {
  bell_.Listen();
  bell_.Ring();
  bell_.StopListening();
  bell_.Listen();
  EXPECT_FALSE(bell_.Sleep(1, kCounting));
  EXPECT_EQ(sleeps, 1);
}

// Every order of what one that rings and one that waits do. What the former has stored before it
// rings stays in its core until `drains_at`, at the latest until the short sleep is over, or until
// it has rung: that is an exchange. Moments are counted in the listener's steps.
struct Order {
  static constexpr int kBeforeListening = 0, kBeforeLook = 1, kBeforeSleep = 2, kAsleep = 3,
                       kBeforeSecondLook = 4, kBeforeSecondSleep = 5, kAsleepAgain = 6;

  int rings_at = 0, drains_at = 0;

  // What has happened.
  Doorbell bell{};
  bool stored = false, said = false;
  int asleep = 0;

  void Moment(int moment) {
    if (moment == rings_at) {
      stored = true;
      said = drains_at <= rings_at;
      bell.Ring();
      if (bell.rung != 0) said = true;
    }
    if (moment >= drains_at && stored) said = true;
  }
};
Order* order;
const WaitCalls kOrdered = {[] { return int64_t{0}; }, [] {}, [](int64_t) {},
                            [](std::atomic<uint32_t>&, uint32_t, int64_t) {
                              const bool again = order->asleep++ > 0;
                              order->Moment(again ? Order::kAsleepAgain : Order::kAsleep);
                              return false;
                            }};

enum class Heard { kWithoutSleep, kByRing, kBehindShortSleep, kNever };

Heard Wait(Order& of) {
  order = &of;
  of.Moment(Order::kBeforeListening);
  of.bell.Listen();
  of.Moment(Order::kBeforeLook);
  if (of.said) return Heard::kWithoutSleep;
  of.Moment(Order::kBeforeSleep);
  const bool rung = of.bell.Sleep(1, kOrdered);
  of.Moment(Order::kBeforeSecondLook);
  if (of.said) return rung ? Heard::kByRing : Heard::kBehindShortSleep;
  of.Moment(Order::kBeforeSecondSleep);
  return of.bell.Sleep(1, kOrdered) && of.said ? Heard::kByRing : Heard::kNever;
}

TEST(DoorbellOrders, NothingIsMissedBehindTheShortSleep) {
  int missed_before = 0;
  for (int rings_at = 0; rings_at <= Order::kAsleepAgain; ++rings_at) {
    for (int drains_at = 0; drains_at <= Order::kBeforeSecondLook; ++drains_at) {
      Order each = {rings_at, drains_at};
      const Heard heard = Wait(each);
      EXPECT_NE(heard, Heard::kNever) << rings_at << ", " << drains_at;
      missed_before += heard == Heard::kBehindShortSleep ? 1 : 0;
    }
  }
  EXPECT_GT(missed_before, 0);  // that is what it is short for
}

}  // namespace
}  // namespace coordd
