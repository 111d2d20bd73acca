#include "server/job/store_return.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

class StoreReturnTest : public ::testing::Test {
 protected:
  StoreReturnTest() { stored_.Begin(); }

  // The last part of what a session reports.
  void Report(int64_t session, const v1::ResumeReport& report, bool more = false) {
    v1::ResumeReport part = report;
    part.set_more(more);
    stored_.Came(SessionId{session});
    stored_.Report(SessionId{session}, part);
  }
  static v1::ResumeReport Value(const std::string& key, const std::string& value, int64_t number,
                                int64_t epoch = 1) {
    v1::ResumeReport report;
    v1::StoredKey& stored = *report.add_stored();
    stored.set_key(key);
    stored.set_value(value);
    stored.mutable_version()->set_epoch(epoch);
    stored.mutable_version()->set_number(number);
    return report;
  }
  static v1::ResumeReport Sum(const std::string& key, int64_t sum, int64_t total, int64_t number) {
    v1::ResumeReport report = Value(key, "", number);
    report.mutable_stored(0)->set_sum(sum);
    report.mutable_stored(0)->set_total(total);
    return report;
  }
  static v1::ResumeReport Deleted(const std::string& key, int64_t number, bool all = false) {
    v1::ResumeReport report;
    v1::DeletedKey& deleted = *report.add_deleted();
    deleted.set_key(key);
    deleted.set_all(all);
    deleted.mutable_version()->set_epoch(1);
    deleted.mutable_version()->set_number(number);
    return report;
  }
  static v1::ResumeReport WithoutVersion(v1::ResumeReport report) {
    report.mutable_stored(0)->clear_version();
    return report;
  }
  static bool All(SessionId) { return true; }

  StoreReturn stored_{1000};
};

TEST_F(StoreReturnTest, TheLastWriteOfAKeyCountsWhoeverSaysIt) {
  Report(1, Value("a", "old", 3));
  Report(2, Value("a", "new", 7));
  Report(3, Value("a", "older", 2));
  Report(4, Value("b", "of the epoch before", 99));
  Report(5, Value("b", "of this one", 1, /*epoch=*/2));
  EXPECT_THAT(stored_.End(All), ElementsAre(Pair("a", "new"), Pair("b", "of this one")));
}

// Of keys of a letter, what remembers them takes most.
TEST_F(StoreReturnTest, WhatIsBroughtIsCountedForTheOwnerOfTheJob) {
  const auto budget = std::make_shared<ByteBudget>(3 * 200);
  stored_.Bind(budget);
  for (const char* key : {"a", "b", "c", "d"}) Report(1, Value(key, "1", 1));
  EXPECT_GT(budget->used(), 3 * 192);
  EXPECT_LE(budget->used(), budget->limit());
  Report(2, Value("a", "older", 0));
  EXPECT_THAT(stored_.End(All), ElementsAre(Pair("a", "1"), Pair("b", "1"), Pair("c", "1")));
  EXPECT_EQ(budget->used(), 0);
}

TEST_F(StoreReturnTest, ACounterIsWhatItsLastAddHasMadeIt) {
  Report(1, Sum("n", 5, 5, 5));
  Report(2, Sum("n", 3, 9, 10));
  EXPECT_THAT(stored_.End(All), ElementsAre(Pair("n", "9")));
}

TEST_F(StoreReturnTest, WhatWasDeletedLastIsNotThere) {
  Report(1, Value("gone", "x", 3));
  Report(2, Deleted("gone", 4));
  Report(3, Deleted("back", 4));
  Report(4, Value("back", "x", 5));
  Report(5, Deleted("p/", 10, /*all=*/true));
  Report(6, Value("p/gone", "x", 9));
  Report(7, Value("p/back", "x", 11));
  EXPECT_THAT(stored_.End(All), ElementsAre(Pair("back", "x"), Pair("p/back", "x")));
}

TEST_F(StoreReturnTest, WhatHasNoVersionCountsWhereNothingHasOne) {
  Report(1, WithoutVersion(Value("a", "first", 0)));
  Report(2, WithoutVersion(Value("a", "second", 0)));
  Report(3, WithoutVersion(Sum("n", 5, 0, 0)));
  Report(4, WithoutVersion(Sum("n", 2, 0, 0)));
  Report(5, WithoutVersion(Value("b", "x", 0)));
  Report(6, Value("b", "y", 1));
  Report(7, WithoutVersion(Value("gone", "x", 0)));
  Report(8, Deleted("gone", 1));
  EXPECT_THAT(stored_.End(All), ElementsAre(Pair("a", "first"), Pair("b", "y"), Pair("n", "7")));
}

TEST_F(StoreReturnTest, AWorkerThatComesAgainCountsOnce) {
  Report(1, WithoutVersion(Sum("n", 5, 0, 0)));
  Report(2, WithoutVersion(Sum("n", 5, 0, 0)));
  Report(1, Value("a", "x", 1));
  const auto is_there = [](SessionId session) { return session == SessionId{2}; };
  EXPECT_TRUE(stored_.Complete(is_there));
  EXPECT_THAT(stored_.End(is_there), ElementsAre(Pair("a", "x"), Pair("n", "5")));
}

TEST_F(StoreReturnTest, WaitsForAllWhoAreThere) {
  EXPECT_TRUE(stored_.Complete(All));
  Report(1, Value("a", "x", 1), /*more=*/true);
  EXPECT_FALSE(stored_.Complete(All));
  EXPECT_TRUE(stored_.Complete([](SessionId) { return false; }));
  stored_.Report(SessionId{1}, {});
  EXPECT_TRUE(stored_.Complete(All));
  stored_.Report(SessionId{2}, Value("b", "of nobody who has come", 1));
  EXPECT_THAT(stored_.End(All), ElementsAre(Pair("a", "x")));
  EXPECT_FALSE(stored_.under_way());
}

TEST_F(StoreReturnTest, AValueWithoutRoomLeavesNoOlderOne) {
  Report(1, Value("a", std::string(900, 'a'), 1));
  Report(2, Value("b", "old", 2));
  Report(3, Value("b", std::string(900, 'b'), 3));
  EXPECT_THAT(stored_.End(All), ElementsAre(Pair("a", std::string(900, 'a'))));
  Report(1, Value("a", "x", 1));
  EXPECT_THAT(stored_.End(All), IsEmpty()) << "nothing is under way";
}

}  // namespace
}  // namespace coordd
