#include "server/job/store_return.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/random.h"

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
  // All values, of which each is given once, in small parts.
  std::map<std::string, std::string> End(absl::FunctionRef<bool(SessionId)> is_there) {
    std::map<std::string, std::string> all;
    for (stored_.End(is_there); stored_.ending();) {
      std::map<std::string, std::string> part = stored_.Take(3);
      all.merge(part);
      EXPECT_THAT(part, IsEmpty());
    }
    return all;
  }

  StoreReturn stored_{1000};
};

TEST_F(StoreReturnTest, TheLastWriteOfAKeyCountsWhoeverSaysIt) {
  Report(1, Value("a", "old", 3));
  Report(2, Value("a", "new", 7));
  Report(3, Value("a", "older", 2));
  Report(4, Value("b", "of the epoch before", 99));
  Report(5, Value("b", "of this one", 1, /*epoch=*/2));
  EXPECT_THAT(End(All), ElementsAre(Pair("a", "new"), Pair("b", "of this one")));
}

// Of keys of a letter, what remembers them takes most.
TEST_F(StoreReturnTest, WhatIsBroughtIsCountedForTheOwnerOfTheJob) {
  const auto budget = std::make_shared<ByteBudget>(3 * 200);
  stored_.Bind(budget);
  for (const char* key : {"a", "b", "c", "d"}) Report(1, Value(key, "1", 1));
  EXPECT_GT(budget->used(), 3 * 192);
  EXPECT_LE(budget->used(), budget->limit());
  Report(2, Value("a", "older", 0));
  EXPECT_THAT(End(All), ElementsAre(Pair("a", "1"), Pair("b", "1"), Pair("c", "1")));
  EXPECT_EQ(budget->used(), 0);
}

TEST_F(StoreReturnTest, ACounterIsWhatItsLastAddHasMadeIt) {
  Report(1, Sum("n", 5, 5, 5));
  Report(2, Sum("n", 3, 9, 10));
  EXPECT_THAT(End(All), ElementsAre(Pair("n", "9")));
}

TEST_F(StoreReturnTest, WhatWasDeletedLastIsNotThere) {
  Report(1, Value("gone", "x", 3));
  Report(2, Deleted("gone", 4));
  Report(3, Deleted("back", 4));
  Report(4, Value("back", "x", 5));
  Report(5, Deleted("p/", 10, /*all=*/true));
  Report(6, Value("p/gone", "x", 9));
  Report(7, Value("p/back", "x", 11));
  EXPECT_THAT(End(All), ElementsAre(Pair("back", "x"), Pair("p/back", "x")));
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
  EXPECT_THAT(End(All), ElementsAre(Pair("a", "first"), Pair("b", "y"), Pair("n", "7")));
}

TEST_F(StoreReturnTest, AWorkerThatComesAgainCountsOnce) {
  Report(1, WithoutVersion(Sum("n", 5, 0, 0)));
  Report(2, WithoutVersion(Sum("n", 5, 0, 0)));
  Report(1, Value("a", "x", 1));
  const auto is_there = [](SessionId session) { return session == SessionId{2}; };
  EXPECT_TRUE(stored_.Complete(is_there));
  EXPECT_THAT(End(is_there), ElementsAre(Pair("a", "x"), Pair("n", "5")));
}

TEST_F(StoreReturnTest, WaitsForAllWhoAreThere) {
  EXPECT_TRUE(stored_.Complete(All));
  Report(1, Value("a", "x", 1), /*more=*/true);
  EXPECT_FALSE(stored_.Complete(All));
  EXPECT_TRUE(stored_.Complete([](SessionId) { return false; }));
  stored_.Report(SessionId{1}, {});
  EXPECT_TRUE(stored_.Complete(All));
  stored_.Report(SessionId{2}, Value("b", "of nobody who has come", 1));
  EXPECT_THAT(End(All), ElementsAre(Pair("a", "x")));
  EXPECT_FALSE(stored_.under_way());
  EXPECT_FALSE(stored_.ending());
}

TEST_F(StoreReturnTest, AValueWithoutRoomLeavesNoOlderOne) {
  Report(1, Value("a", std::string(900, 'a'), 1));
  Report(2, Value("b", "old", 2));
  Report(3, Value("b", std::string(900, 'b'), 3));
  EXPECT_THAT(End(All), ElementsAre(Pair("a", std::string(900, 'a'))));
  Report(1, Value("a", "x", 1));
  EXPECT_THAT(End(All), IsEmpty()) << "nothing is under way";
}

TEST_F(StoreReturnTest, WhatIsAbandonedIsFreedInPartsAndCountsUntilThen) {
  const auto budget = std::make_shared<ByteBudget>(1 << 20);
  stored_.Bind(budget);
  Report(1, Value("a", "1", 1));
  Report(2, WithoutVersion(Value("b", "1", 1)));
  Report(3, Deleted("p/", 10, /*all=*/true));
  const int64_t used = budget->used();
  EXPECT_GT(used, 0);
  const std::unique_ptr<Remains> dropped = stored_.Abandon();
  EXPECT_EQ(dropped->Free(2), 2);
  EXPECT_EQ(budget->used(), used);
  EXPECT_EQ(dropped->Free(2), 1);
  EXPECT_EQ(budget->used(), 0);
  EXPECT_EQ(stored_.Abandon(), nullptr);
}

// Each turn asks, while a hundred thousand come and go.
TEST_F(StoreReturnTest, WhoHasReportedOrGoneIsNotAskedForAgain) {
  int asked = 0;
  const auto is_there = [&asked](SessionId session) {
    ++asked;
    return session == SessionId{1001};
  };
  for (int64_t session = 1; session <= 1001; ++session) stored_.Came(SessionId{session});
  for (int64_t session = 1; session <= 500; ++session)
    stored_.Report(SessionId{session}, v1::ResumeReport());
  for (int turn = 0; turn < 100; ++turn) EXPECT_FALSE(stored_.EndIfComplete(is_there));
  EXPECT_EQ(asked, 500 + 100);
  stored_.Report(SessionId{1001}, v1::ResumeReport());
  EXPECT_TRUE(stored_.EndIfComplete(is_there));
}

// Each key and each prefix is looked at once or twice, even where each key begins with all of them.
TEST(StoreReturnWork, IsThatOfTheKeysAndThePrefixesTogether) {
  constexpr int kKeys = 3000, kNested = 250;
  for (const bool has_version : {true, false}) {
    StoreReturn stored(1 << 24);
    stored.Begin();
    stored.Came(SessionId{1});
    v1::ResumeReport report;
    const std::string first(kNested, 'a');
    for (int i = 0; i < kKeys; ++i) {
      v1::StoredKey& key = *report.add_stored();
      key.set_key(absl::StrCat(i % 2 == 0 ? first : "z", i));
      if (has_version) key.mutable_version()->set_number(i % 4 == 0 ? 1 : 3);
      v1::DeletedKey& deleted = *report.add_deleted();
      deleted.set_key(i < kNested ? first.substr(0, i + 1) : absl::StrCat("b", i));
      deleted.set_all(true);
      deleted.mutable_version()->set_number(2);
    }
    stored.Report(SessionId{1}, report);
    stored.End([](SessionId) { return true; });
    size_t values = 0, takes = 0;
    for (; stored.ending(); ++takes) values += stored.Take(100).size();
    EXPECT_EQ(values, has_version ? kKeys * 3 / 4 : kKeys / 2);
    EXPECT_LE(takes, (2 * kKeys + 2 * kKeys) / 100 + 4);
    EXPECT_GE(takes, 2 * kKeys / 100);
  }
}

// Beside what says the same slowly.
TEST(StoreReturnModel, AgreesWithAllPairs) {
  Random random(7);
  const auto text = [&random] {
    std::string text;
    do text += random.Below(2) == 0 ? 'a' : 'b';
    while (random.Below(3) != 0);
    return text;
  };
  for (int round = 0; round < 300; ++round) {
    StoreReturn stored(1 << 20);
    stored.Begin();
    std::map<std::string, std::pair<int64_t, std::optional<std::string>>> last;
    std::map<std::string, std::string> without;
    std::vector<std::pair<std::string, int64_t>> prefixes;
    for (int64_t number = 1; number <= 30; ++number) {
      const std::string key = text();
      v1::ResumeReport report;
      const uint64_t what = random.Below(4);
      if (what >= 2) {
        v1::DeletedKey& deleted = *report.add_deleted();
        deleted.set_key(key);
        deleted.set_all(what == 3);
        deleted.mutable_version()->set_number(number);
        if (what == 3) prefixes.emplace_back(key, number);
        if (what == 2) last[key] = {number, std::nullopt};
      } else {
        v1::StoredKey& written = *report.add_stored();
        written.set_key(key);
        written.set_value(absl::StrCat(number));
        if (what == 1) written.mutable_version()->set_number(number);
        if (what == 1) last[key] = {number, absl::StrCat(number)};
        if (what == 0) without.try_emplace(key, absl::StrCat(number));
      }
      stored.Came(SessionId{number});
      stored.Report(SessionId{number}, report);
    }
    std::map<std::string, std::string> expected;
    const auto is_deleted = [&prefixes](const std::string& key, int64_t number) {
      return std::any_of(prefixes.begin(), prefixes.end(), [&](const auto& one) {
        return absl::StartsWith(key, one.first) && number < one.second;
      });
    };
    for (const auto& [key, one] : last)
      if (one.second && !is_deleted(key, one.first)) expected[key] = *one.second;
    for (const auto& [key, value] : without)
      if (!last.contains(key) && !is_deleted(key, 0)) expected[key] = value;
    stored.End([](SessionId) { return true; });
    std::map<std::string, std::string> found;
    while (stored.ending()) found.merge(stored.Take(1 + static_cast<int64_t>(random.Below(5))));
    EXPECT_EQ(found, expected);
  }
}

}  // namespace
}  // namespace coordd
