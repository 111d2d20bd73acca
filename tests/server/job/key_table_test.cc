#include "server/job/key_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using Naive = std::map<std::string, std::string>;

KeyTable::Sum SumOf(const Naive& naive, const std::string& prefix) {
  KeyTable::Sum sum;
  for (const auto& [key, value] : naive) {
    if (!absl::StartsWith(key, prefix)) continue;
    sum.keys += 1;
    sum.bytes += static_cast<int64_t>(key.size() + value.size());
  }
  return sum;
}

void ExpectSame(const KeyTable& table, const Naive& naive) {
  ASSERT_THAT(table.CheckConsistency(), IsOk());
  Naive all;
  table.ForEach([&](const std::string& key, const std::string& value) { all[key] = value; });
  ASSERT_EQ(all, naive);
}

// Digits in random order, and bytes that are the last of all.
std::string RandomKey(Random& random, int64_t below) {
  const uint64_t number = random.Below(below);
  return absl::StrCat(number % 50 == 0 ? "\xff\xff" : "", number * 7919 % 100'000);
}

TEST(KeyTable, AgreesWithAMap) {
  Random random(7);
  KeyTable table;
  Naive naive;
  for (int i = 0; i < 30'000; ++i) {
    // There are thousands for a while, then few, and again.
    const bool grows = i / 5000 % 2 == 0;
    const std::string key = RandomKey(random, 20'000);
    const uint64_t what = random.Below(1000);
    if (what < (grows ? 900 : 100)) {
      const std::string value(random.Below(5), 'v');
      ASSERT_EQ(table.Put(key, value), value);
      naive[key] = value;
    } else if (what < 990) {
      const std::string there = naive.empty() ? key
                                : naive.lower_bound(key) == naive.end()
                                    ? naive.begin()->first
                                    : naive.lower_bound(key)->first;
      ASSERT_EQ(table.Erase(there), naive.erase(there) == 1);
    } else {
      const std::string prefix = key.substr(0, 1 + random.Below(4));
      const KeyTable::Sum sum = SumOf(naive, prefix);
      ASSERT_EQ(table.SumOf(prefix).keys, sum.keys);
      ASSERT_EQ(table.SumOf(prefix).bytes, sum.bytes);
      KeyTable taken = table.Take(prefix);
      Naive gone;
      for (auto it = naive.lower_bound(prefix);
           it != naive.end() && absl::StartsWith(it->first, prefix);)
        gone.insert(naive.extract(it++));
      ExpectSame(table, naive);
      Naive all;
      taken.ForEach([&](const std::string& k, const std::string& v) { all[k] = v; });
      ASSERT_EQ(all, gone);
      ASSERT_EQ(taken.FreeFirst(3), std::min<int64_t>(3, sum.keys));
      ASSERT_EQ(taken.sum().keys, std::max<int64_t>(sum.keys - 3, 0));
      ASSERT_EQ(taken.FreeFirst(100'000), std::max<int64_t>(sum.keys - 3, 0));
      ASSERT_EQ(taken.sum().bytes, 0);
    }
    const std::string* found = table.Find(key);
    ASSERT_EQ(found != nullptr, naive.contains(key));
    if (found != nullptr) ASSERT_EQ(*found, naive.at(key));
    if (i % 500 == 0) ExpectSame(table, naive);
  }
}

// So it is no long turn, however many they are.
TEST(KeyTable, TakesAPrefixWithoutGoingOverItsKeys) {
  for (const char* prefix : {"a", "b", "c", ""}) {
    KeyTable table;
    for (int i = 0; i < 30'000; ++i) {
      const int number = i * 7919 % 30'000;
      table.Put(absl::StrCat(number % 3 == 0 ? "a" : number % 3 == 1 ? "b" : "c", number), "v");
    }
    const int64_t before = table.moved();
    const KeyTable taken = table.Take(prefix);
    EXPECT_EQ(taken.sum().keys, prefix[0] == 0 ? 30'000 : 10'000);
    EXPECT_EQ(taken.sum().keys + table.sum().keys, 30'000);
    EXPECT_LE(table.moved() - before, 4 * static_cast<int64_t>(KeyTable::kMostInPart));
    EXPECT_THAT(table.CheckConsistency(), IsOk());
  }
}

TEST(KeyTable, HasFewPartsForFewKeysThatAreLeftOfMany) {
  KeyTable table;
  for (int i = 0; i < 20'000; ++i) table.Put(absl::StrCat(100'000 + i), "v");
  for (int i = 0; i < 20'000; ++i)
    if (i % 200 != 0) table.Erase(absl::StrCat(100'000 + i));
  EXPECT_EQ(table.sum().keys, 100);
  EXPECT_THAT(table.CheckConsistency(), IsOk()) << "two parts are too small";
}

}  // namespace
}  // namespace coordd
