#include "server/service/waiting_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr size_t kOneMiB = size_t{1} << 20;

class WaitingLineTest : public ::testing::Test {
 protected:
  void Add(const std::string& name, uint64_t job, size_t bytes) { Add(name, {.job = job}, bytes); }
  void Add(const std::string& name, WaitingLine::Place place, size_t bytes) {
    place.size.bytes = bytes;
    place.resume = [this, name] { called_.push_back(name); };
    line_.Add(std::move(place));
  }
  std::vector<std::string> Take(size_t small, size_t large_bytes) {
    called_.clear();
    for (const auto& resume :
         line_.Take({.messages = small, .small_cost = kOneMiB, .large_cost = large_bytes}))
      resume();
    return called_;
  }

  WaitingLine line_;
  std::vector<std::string> called_;
};

TEST_F(WaitingLineTest, SmallOnesGoFirstAndInOrder) {
  Add("large", 1, kOneMiB);
  Add("a", 1, MessageSize::kSmallBytes);
  Add("b", 2, 0);
  Add("c", 1, 1);
  EXPECT_THAT(Take(2, kOneMiB), ElementsAre("a", "b", "large"));
  EXPECT_THAT(Take(2, kOneMiB), ElementsAre("c"));
  EXPECT_TRUE(line_.empty());
}

TEST_F(WaitingLineTest, JobsTakeTurnsHoweverManyOneOfThemHas) {
  for (int i = 0; i < 3; ++i) Add("flood" + std::to_string(i), 1, kOneMiB);
  Add("other", 2, kOneMiB);
  EXPECT_THAT(Take(1, kOneMiB), ElementsAre("flood0"));
  EXPECT_THAT(Take(1, kOneMiB), ElementsAre("other"));
  EXPECT_THAT(Take(1, kOneMiB), ElementsAre("flood1"));
  EXPECT_THAT(Take(1, kOneMiB), ElementsAre("flood2"));
}

TEST_F(WaitingLineTest, SeveralFitWhereTheyAreNotThatLarge) {
  for (const char* name : {"a", "b", "c"}) Add(name, 1, kOneMiB / 2);
  EXPECT_THAT(Take(1, kOneMiB), ElementsAre("a", "b"));
  EXPECT_THAT(Take(1, 1), ElementsAre("c"));  // one always does
}

TEST_F(WaitingLineTest, OfSmallOnesAsManyAsATurnMayCost) {
  for (const char* name : {"a", "b", "c"}) Add(name, 1, MessageSize::kSmallBytes);
  int called = 0;
  for (const auto& resume :
       line_.Take({.messages = 3, .small_cost = MessageSize::kSmallBytes + 1, .large_cost = 0})) {
    resume();
    ++called;
  }
  EXPECT_EQ(called, 2);  // there was some room when the second one's turn came
  EXPECT_THAT(Take(3, 0), ElementsAre("c"));
}

TEST_F(WaitingLineTest, CallersTakeTurnsHoweverManyJobsOneOfThemHas) {
  for (uint64_t job = 1; job <= 3; ++job)
    Add(absl::StrCat("flood", job), {.account = 1, .job = job}, kOneMiB);
  Add("other", {.account = 2, .job = 9}, kOneMiB);
  EXPECT_THAT(Take(1, kOneMiB), ElementsAre("flood1"));
  EXPECT_THAT(Take(1, kOneMiB), ElementsAre("other"));
  EXPECT_THAT(Take(1, 2 * kOneMiB), ElementsAre("flood2", "flood3"));
}

TEST_F(WaitingLineTest, WhatHasBegunGoesOnBeforeOthersOfItsJob) {
  Add("a", 1, kOneMiB);
  Add("rest", {.job = 1, .has_begun = true}, kOneMiB);
  Add("other", 2, kOneMiB);
  EXPECT_THAT(Take(1, 3 * kOneMiB), ElementsAre("rest", "other", "a"));
}

// Of a message of which one part after the other is told.
class BegunTest : public WaitingLineTest {
 protected:
  void Begin(uint64_t account, uint64_t job) {
    const std::string name = absl::StrCat("rest of ", job);
    begun_[name] = {.account = account, .job = job, .has_begun = true};
    Add(name, begun_[name], kOneMiB);
  }
  // Whose turn it is; what has begun goes on.
  std::string Next() {
    const std::vector<std::string> taken = Take(1, 1);
    if (taken.size() != 1) return "not one";
    if (const auto it = begun_.find(taken[0]); it != begun_.end())
      Add(taken[0], it->second, kOneMiB);
    return taken[0];
  }
  void End(uint64_t job) { begun_.erase(absl::StrCat("rest of ", job)); }

  std::map<std::string, WaitingLine::Place> begun_;
};

TEST_F(BegunTest, OfOneCallerAreFew) {
  static_assert(WaitingLine::kBegunOfOne == 3);
  for (uint64_t job = 1; job <= 3; ++job) Begin(1, job);
  Add("one's next", {.account = 1, .job = 4}, kOneMiB);
  Add("another's", {.account = 2, .job = 5}, kOneMiB);
  for (const char* next : {"rest of 1", "another's", "rest of 2", "rest of 3", "rest of 1"})
    EXPECT_EQ(Next(), next);
  End(2);
  for (const char* next : {"rest of 2", "rest of 3", "one's next", "rest of 1"})
    EXPECT_EQ(Next(), next);
}

TEST_F(BegunTest, OfAllAreFew) {
  static_assert(WaitingLine::kBegunMax == 8);
  for (uint64_t job = 1; job <= 8; ++job) Begin(job, job);
  Add("new", {.account = 9, .job = 9}, kOneMiB);
  for (uint64_t job = 1; job <= 8; ++job) EXPECT_EQ(Next(), absl::StrCat("rest of ", job));
  End(1);
  EXPECT_EQ(Next(), "rest of 1");
  for (uint64_t job = 2; job <= 8; ++job) EXPECT_EQ(Next(), absl::StrCat("rest of ", job));
  EXPECT_EQ(Next(), "new");
}

TEST_F(WaitingLineTest, NoLargeOneFitsIntoNothing) {
  Add("a", 1, kOneMiB);
  EXPECT_THAT(Take(1, 0), IsEmpty());
  EXPECT_TRUE(line_.HasOf({.bytes = kOneMiB}));
  EXPECT_FALSE(line_.HasOf({}));
}

}  // namespace
}  // namespace coordd
