#include "common/protocol/written_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "absl/strings/str_cat.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

StoreVersion At(int64_t number, int64_t epoch = 1) { return {Epoch{epoch}, number}; }

// "value@epoch.number" of each key; of those that are gone "deleted", "forgotten" or "all deleted".
std::map<std::string, std::string> Said(const WrittenKeys& written) {
  std::map<std::string, std::string> said;
  const auto at = [](const v1::StoreVersion& version) {
    return absl::StrCat("@", version.epoch(), ".", version.number());
  };
  const WrittenReport report = written.Report();
  for (const v1::StoredKey& key : report.stored) {
    const std::string sum =
        key.sum() == 0 ? key.value() : absl::StrCat("+", key.sum(), "=", key.total());
    said[key.key()] = absl::StrCat(sum, key.has_version() ? at(key.version()) : "");
  }
  for (const v1::DeletedKey& key : report.deleted)
    said[key.key()] = absl::StrCat(key.all()         ? "all deleted"
                                   : key.forgotten() ? "forgotten"
                                                     : "deleted",
                                   at(key.version()));
  return said;
}

TEST(WrittenKeys, SaysTheLastValueOfEachKeyWithItsVersion) {
  WrittenKeys written;
  written.Set("a", "1", At(1));
  written.Set("a", "2", At(7));
  written.Append("b", "xy", At(3));
  written.Add("c", 2, 12, At(4));
  written.Add("c", 3, 20, At(9));
  EXPECT_THAT(Said(written),
              ElementsAre(Pair("a", "2@1.7"), Pair("b", "xy@1.3"), Pair("c", "+5=20@1.9")));
}

TEST(WrittenKeys, AnAnswerMayBeTakenDownLate) {
  WrittenKeys written;
  written.Set("a", "new", At(5));
  written.Set("a", "old", At(4));
  written.Delete("b", At(5));
  written.Set("b", "old", At(4));
  written.Set("c", "new", At(1, /*epoch=*/2));
  written.Delete("c", At(9));
  written.Add("d", 1, 2, At(11));
  written.Add("d", 1, 1, At(10));
  EXPECT_THAT(Said(written), ElementsAre(Pair("a", "new@1.5"), Pair("b", "deleted@1.5"),
                                         Pair("c", "new@2.1"), Pair("d", "+2=2@1.11")));
}

TEST(WrittenKeys, ANumberThatWasSetIsNoSum) {
  WrittenKeys written;
  written.Set("a", "5", At(1));
  written.Add("a", 1, 6, At(2));
  written.Delete("b", At(3));
  written.Add("b", 1, 1, At(4));
  written.Add("c", 1, 1, At(5));
  written.Add("c", -1, 0, At(6));
  EXPECT_THAT(Said(written),
              ElementsAre(Pair("a", "6@1.2"), Pair("b", "1@1.4"), Pair("c", "0@1.6")));
}

TEST(WrittenKeys, WithoutVersionsItSaysWhatItHasSetAndAddedAndNoDeletions) {
  WrittenKeys written;
  written.Set("a", "1", std::nullopt);
  written.Add("b", 2, 9, std::nullopt);
  written.Add("b", 3, 20, std::nullopt);
  written.Set("c", "1", std::nullopt);
  written.Delete("c", std::nullopt);
  written.Set("d/1", "1", std::nullopt);
  written.DeletePrefix("d/", std::nullopt);
  written.Set("e", "1", std::nullopt);
  written.Append("e", "", std::nullopt);
  EXPECT_THAT(Said(written), ElementsAre(Pair("a", "1"), Pair("b", "+5=0")));
}

TEST(WrittenKeys, APrefixIsDeletedWithWhatWasWrittenBefore) {
  WrittenKeys written;
  written.Set("p/a", "1", At(1));
  written.Delete("p/b", At(2));
  written.Set("p/c", "3", At(9));
  written.DeletePrefix("p/", At(5));
  written.Set("p/d", "late", At(4));
  EXPECT_THAT(Said(written), ElementsAre(Pair("p/", "all deleted@1.5"), Pair("p/c", "3@1.9")));
}

TEST(WrittenKeys, WhatCoorddDeletesByItselfLeavesNothing) {
  WrittenKeys written;
  written.Set("gen/1/a", "1", At(1));
  written.Delete("gen/1/b", At(2));
  written.DeletePrefix("gen/1/c", At(3));
  written.Set("program/a", "1", At(4));
  written.Forget("");
  EXPECT_THAT(Said(written), SizeIs(4));
  written.Forget("gen/1/");
  EXPECT_THAT(Said(written), ElementsAre(Pair("program/a", "1@1.4")));
  EXPECT_EQ(written.gone_bytes(), 0);
}

TEST(WrittenKeys, AValueWithoutRoomIsSaidToBeForgotten) {
  WrittenKeys written;
  const std::string large(600 << 10, 'x');
  written.Set("a", large, At(1));
  written.Set("b", large, At(2));
  written.Set("c", "small", At(3));
  EXPECT_THAT(Said(written), ElementsAre(Pair("a", large + "@1.1"), Pair("b", "forgotten@1.2"),
                                         Pair("c", "small@1.3")));
  written.Delete("a", At(4));
  written.Set("b", large, At(5));
  EXPECT_THAT(Said(written), ElementsAre(Pair("a", "deleted@1.4"), Pair("b", large + "@1.5"),
                                         Pair("c", "small@1.3")));
}

TEST(WrittenKeys, TheOldestDeletionsGoFirst) {
  WrittenKeys written;
  const int64_t count = 2 * WrittenKeys::kMaxGoneBytes / (6 + WrittenKeys::kEntryBytes);
  for (int64_t i = 0; i < count; ++i) written.Delete(absl::StrCat(100000 + i), At(i));
  const auto said = Said(written);
  EXPECT_LE(written.gone_bytes(), WrittenKeys::kMaxGoneBytes);
  EXPECT_FALSE(said.contains("100000"));
  EXPECT_TRUE(said.contains(absl::StrCat(100000 + count - 1)));
  EXPECT_GT(static_cast<int64_t>(said.size()), count / 2 - 2);
  written.Forget("1");
  EXPECT_THAT(Said(written), IsEmpty());
  EXPECT_EQ(written.gone_bytes(), 0);
}

}  // namespace
}  // namespace coordd
