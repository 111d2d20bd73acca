// What every Store must do. A test program includes this once and instantiates StoreTest with a way
// to make each implementation:
//   INSTANTIATE_TEST_SUITE_P(InMemory, StoreTest, testing::Values([] { return ...; }));
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/thread.h"
#include "common/protocol/store.h"
#include "tests/support/status_matchers.h"

namespace coordd {

// Makes an empty store, with whatever it stands on kept alive by the pointer.
using StoreFactory = std::function<std::shared_ptr<Store>()>;

class StoreTest : public ::testing::TestWithParam<StoreFactory> {
 protected:
  // Against hangs only: nothing here is expected to take this long.
  static absl::Time Soon() { return Clock::Real().Now() + absl::Seconds(60); }

  const std::shared_ptr<Store> store_ = GetParam()();
};

TEST_P(StoreTest, GivesBackWhatWasSet) {
  ASSERT_THAT(store_->Set("address/0", "10.0.0.7", Soon()), IsOk());
  EXPECT_THAT(store_->Get("address/0", Soon()), IsOkAndHolds("10.0.0.7"));
}

TEST_P(StoreTest, KeepsBytesAsTheyAre) {
  const std::string value("\0\xff\n binary", 10);
  ASSERT_THAT(store_->Set("id", value, Soon()), IsOk());
  EXPECT_THAT(store_->Get("id", Soon()), IsOkAndHolds(value));
}

TEST_P(StoreTest, HoldsEmptyValues) {
  ASSERT_THAT(store_->Set("empty", "", Soon()), IsOk());
  EXPECT_THAT(store_->Get("empty", Soon()), IsOkAndHolds(""));
}

TEST_P(StoreTest, OverwritesAValue) {
  ASSERT_THAT(store_->Set("key", "first", Soon()), IsOk());
  ASSERT_THAT(store_->Set("key", "second", Soon()), IsOk());
  EXPECT_THAT(store_->Get("key", Soon()), IsOkAndHolds("second"));
}

TEST_P(StoreTest, ReadOfAKeyThatNobodySetsEndsAtItsDeadline) {
  const absl::Time deadline = Clock::Real().Now() + absl::Milliseconds(20);
  EXPECT_THAT(store_->Get("missing", deadline),
              StatusIs(absl::StatusCode::kDeadlineExceeded, ::testing::HasSubstr("missing")));
}

TEST_P(StoreTest, ReadWaitsUntilTheKeyIsSet) {
  absl::StatusOr<std::string> seen = absl::UnknownError("not read");
  std::thread reader = StartThread("reader", [&] { seen = store_->Get("late", Soon()); });
  ASSERT_THAT(store_->Set("late", "here", Soon()), IsOk());
  reader.join();
  EXPECT_THAT(seen, IsOkAndHolds("here"));
}

TEST_P(StoreTest, AddCountsFromZeroAndReturnsTheSum) {
  EXPECT_THAT(store_->Add("counter", 5, Soon()), IsOkAndHolds(5));
  EXPECT_THAT(store_->Add("counter", -7, Soon()), IsOkAndHolds(-2));
  EXPECT_THAT(store_->Get("counter", Soon()), IsOkAndHolds("-2"));
}

TEST_P(StoreTest, AddIsAtomicAmongThreads) {
  constexpr int kThreads = 4;
  constexpr int kAddsPerThread = 50;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.push_back(StartThread("adder", [this] {
      for (int k = 0; k < kAddsPerThread; ++k)
        EXPECT_THAT(store_->Add("counter", 1, Soon()), IsOk());
    }));
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(store_->Add("counter", 0, Soon()), IsOkAndHolds(kThreads * kAddsPerThread));
}

TEST_P(StoreTest, AddToAValueThatIsNotANumberIsRefused) {
  ASSERT_THAT(store_->Set("name", "node3", Soon()), IsOk());
  EXPECT_THAT(store_->Add("name", 1, Soon()),
              StatusIs(absl::StatusCode::kInvalidArgument, ::testing::HasSubstr("name")));
  EXPECT_THAT(store_->Get("name", Soon()), IsOkAndHolds("node3"));
}

TEST_P(StoreTest, DeletesExactlyTheKeysWithThePrefix) {
  for (const char* key : {"g1/a", "g1/b", "g10/a", "g2/a"})
    ASSERT_THAT(store_->Set(key, "x", Soon()), IsOk());
  ASSERT_THAT(store_->DeletePrefix("g1/", Soon()), IsOk());
  const absl::Time now = Clock::Real().Now() + absl::Milliseconds(20);
  EXPECT_THAT(store_->Get("g1/a", now),
              StatusIs(absl::StatusCode::kDeadlineExceeded, ::testing::_));
  EXPECT_THAT(store_->Get("g10/a", Soon()), IsOkAndHolds("x"));
  EXPECT_THAT(store_->Get("g2/a", Soon()), IsOkAndHolds("x"));
}

TEST_P(StoreTest, RefusesKeysAndValuesBeyondTheirBounds) {
  const std::string long_key(Store::kMaxKeyBytes + 1, 'k');
  const std::string long_value(Store::kMaxValueBytes + 1, 'v');
  const auto invalid = StatusIs(absl::StatusCode::kInvalidArgument, ::testing::_);
  EXPECT_THAT(store_->Set(long_key, "x", Soon()), invalid);
  EXPECT_THAT(store_->Get(long_key, Soon()), invalid);
  EXPECT_THAT(store_->Add(long_key, 1, Soon()), invalid);
  EXPECT_THAT(store_->Set("key", long_value, Soon()), invalid);
}

TEST_P(StoreTest, TakesAValueOfExactlyTheBound) {
  const std::string value(Store::kMaxValueBytes, 'v');
  ASSERT_THAT(store_->Set("key", value, Soon()), IsOk());
  EXPECT_THAT(store_->Get("key", Soon()), IsOkAndHolds(value));
}

TEST_P(StoreTest, ComparesAndSetsInOneStep) {
  EXPECT_THAT(store_->CompareSet("key", "x", "first", Soon()), IsOkAndHolds(std::nullopt));
  EXPECT_THAT(store_->CompareSet("key", std::nullopt, "first", Soon()),
              IsOkAndHolds(std::optional<std::string>("first")));
  EXPECT_THAT(store_->CompareSet("key", std::nullopt, "second", Soon()),
              IsOkAndHolds(std::optional<std::string>("first")));
  EXPECT_THAT(store_->CompareSet("key", "first", "second", Soon()),
              IsOkAndHolds(std::optional<std::string>("second")));
  EXPECT_THAT(store_->Get("key", Soon()), IsOkAndHolds("second"));
  EXPECT_THAT(store_->CompareSet("key", "", "third", Soon()),
              IsOkAndHolds(std::optional<std::string>("second")));
}

TEST_P(StoreTest, OneOfManyWhoCompareWins) {
  std::atomic<int> won = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.push_back(StartThread("claimer", [this, i, &won] {
      const std::string mine = absl::StrCat(i);
      const auto now = store_->CompareSet("owner", std::nullopt, mine, Soon());
      if (now.ok() && *now == mine) ++won;
    }));
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(won, 1);
}

TEST_P(StoreTest, AReaderWakesByWhateverMakesItsKey) {
  absl::StatusOr<std::string> compared = absl::UnknownError("not read"), appended = compared;
  std::thread first = StartThread("reader", [&] { compared = store_->Get("compared", Soon()); });
  std::thread second = StartThread("reader", [&] { appended = store_->Get("appended", Soon()); });
  EXPECT_THAT(store_->CompareSet("compared", std::nullopt, "here", Soon()), IsOk());
  EXPECT_THAT(store_->Append("appended", "here", Soon()), IsOkAndHolds(4));
  first.join();
  second.join();
  EXPECT_THAT(compared, IsOkAndHolds("here"));
  EXPECT_THAT(appended, IsOkAndHolds("here"));
}

TEST_P(StoreTest, AppendsUpToTheBound) {
  EXPECT_THAT(store_->Append("log", "ab", Soon()), IsOkAndHolds(2));
  EXPECT_THAT(store_->Append("log", "cd", Soon()), IsOkAndHolds(4));
  EXPECT_THAT(store_->Get("log", Soon()), IsOkAndHolds("abcd"));
  EXPECT_THAT(store_->Append("log", std::string(Store::kMaxValueBytes - 3, 'x'), Soon()),
              StatusIs(absl::StatusCode::kInvalidArgument, ::testing::HasSubstr("log")));
  EXPECT_THAT(store_->Get("log", Soon()), IsOkAndHolds("abcd"));
}

TEST_P(StoreTest, DeletesOneKey) {
  ASSERT_THAT(store_->Set("one", "x", Soon()), IsOk());
  ASSERT_THAT(store_->Set("one/more", "x", Soon()), IsOk());
  EXPECT_THAT(store_->Delete("one", Soon()), IsOkAndHolds(true));
  EXPECT_THAT(store_->Delete("one", Soon()), IsOkAndHolds(false));
  EXPECT_THAT(store_->Look({"one", "one/more"}, /*values=*/true, Soon()),
              IsOkAndHolds(::testing::ElementsAre(std::nullopt, "x")));
}

TEST_P(StoreTest, LooksWithoutWaiting) {
  ASSERT_THAT(store_->Set("a", "1", Soon()), IsOk());
  ASSERT_THAT(store_->Set("empty", "", Soon()), IsOk());
  EXPECT_THAT(store_->Look({"empty", "missing", "a"}, /*values=*/true, Soon()),
              IsOkAndHolds(::testing::ElementsAre("", std::nullopt, "1")));
  EXPECT_THAT(store_->Look({"empty", "missing", "a"}, /*values=*/false, Soon()),
              IsOkAndHolds(::testing::ElementsAre("", std::nullopt, "")));
  EXPECT_THAT(store_->Look({}, /*values=*/true, Soon()), IsOkAndHolds(::testing::IsEmpty()));
}

TEST_P(StoreTest, LooksAtMoreThanOneAnswerHolds) {
  const std::string value(Store::kMaxValueBytes, 'v');
  std::vector<std::string> keys;
  for (int i = 0; i < 7; ++i) {
    keys.push_back(absl::StrCat("large/", i));
    ASSERT_THAT(store_->Set(keys.back(), value, Soon()), IsOk());
  }
  EXPECT_THAT(store_->Look(keys, /*values=*/true, Soon()),
              IsOkAndHolds(::testing::AllOf(::testing::SizeIs(7), ::testing::Each(value))));
  for (size_t i = 0; i < Store::kMaxLookKeys; ++i) keys.push_back(absl::StrCat("none/", i));
  EXPECT_THAT(store_->Look(keys, /*values=*/false, Soon()),
              IsOkAndHolds(::testing::SizeIs(7 + Store::kMaxLookKeys)));
}

TEST_P(StoreTest, CountsKeysByPrefix) {
  EXPECT_THAT(store_->Count("", Soon()), IsOkAndHolds(0));
  for (const char* key : {"a/1", "a/2", "b/1"}) ASSERT_THAT(store_->Set(key, "x", Soon()), IsOk());
  EXPECT_THAT(store_->Count("a/", Soon()), IsOkAndHolds(2));
  EXPECT_THAT(store_->Count("", Soon()), IsOkAndHolds(3));
}

}  // namespace coordd
