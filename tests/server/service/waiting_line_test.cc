#include "server/service/waiting_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr size_t kLarge = size_t{1} << 20;

class WaitingLineTest : public ::testing::Test {
 protected:
  void Add(const std::string& name, uint64_t job, size_t bytes) {
    line_.Add({.job = job, .size = {.bytes = bytes}, .resume = [this, name] {
                 called_.push_back(name);
               }});
  }
  std::vector<std::string> Take(size_t small, size_t large_bytes) {
    called_.clear();
    for (const auto& resume :
         line_.Take({.messages = small, .small_cost = kLarge, .large_cost = large_bytes}))
      resume();
    return called_;
  }

  WaitingLine line_;
  std::vector<std::string> called_;
};

TEST_F(WaitingLineTest, SmallOnesGoFirstAndInOrder) {
  Add("large", 1, kLarge);
  Add("a", 1, MessageSize::kSmallBytes);
  Add("b", 2, 0);
  Add("c", 1, 1);
  EXPECT_THAT(Take(2, kLarge), ElementsAre("a", "b", "large"));
  EXPECT_THAT(Take(2, kLarge), ElementsAre("c"));
  EXPECT_TRUE(line_.empty());
}

TEST_F(WaitingLineTest, JobsTakeTurnsHoweverManyOneOfThemHas) {
  for (int i = 0; i < 3; ++i) Add("flood" + std::to_string(i), 1, kLarge);
  Add("other", 2, kLarge);
  EXPECT_THAT(Take(1, kLarge), ElementsAre("flood0"));
  EXPECT_THAT(Take(1, kLarge), ElementsAre("other"));
  EXPECT_THAT(Take(1, kLarge), ElementsAre("flood1"));
  EXPECT_THAT(Take(1, kLarge), ElementsAre("flood2"));
}

TEST_F(WaitingLineTest, SeveralFitWhereTheyAreNotThatLarge) {
  for (const char* name : {"a", "b", "c"}) Add(name, 1, kLarge / 2);
  EXPECT_THAT(Take(1, kLarge), ElementsAre("a", "b"));
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

TEST_F(WaitingLineTest, NoLargeOneFitsIntoNothing) {
  Add("a", 1, kLarge);
  EXPECT_THAT(Take(1, 0), IsEmpty());
  EXPECT_TRUE(line_.HasOf({.bytes = kLarge}));
  EXPECT_FALSE(line_.HasOf({}));
}

}  // namespace
}  // namespace coordd
