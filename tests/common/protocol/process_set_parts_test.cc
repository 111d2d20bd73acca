#include "common/protocol/process_set_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/protocol/protocol_bounds.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::HasSubstr;

void AddSet(v1::ProcessSets& sets, int32_t number, const std::vector<int32_t>& ranks) {
  v1::ProcessSet& set = *sets.add_sets();
  set.set_process_set(number);
  set.mutable_ranks()->Assign(ranks.begin(), ranks.end());
}

TEST(ProcessSetParts, OfOneAreTheWholeAndOfNoneIsOne) {
  EXPECT_EQ(InParts({}, 100).size(), 1u);
  v1::ProcessSets sets;
  sets.set_last_process_set(9);
  sets.set_position(4);
  AddSet(sets, 1, {0, 2});
  const auto parts = InParts(sets, 1000);
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_EQ(parts[0].SerializeAsString(), sets.SerializeAsString());
}

TEST(ProcessSetParts, MakeTheWholeAgainAndOnlyTheLastSaysThatItIsThat) {
  v1::ProcessSets sets;
  sets.set_last_process_set(100);
  for (int32_t number = 1; number <= 100; ++number) AddSet(sets, number, {0, number});
  AddSet(sets, 101, std::vector<int32_t>(1000, 7));  // larger than a part: it has one of its own
  v1::ProcessSets whole;
  const auto parts = InParts(sets, 200);
  EXPECT_GT(parts.size(), 10u);
  for (size_t i = 0; i < parts.size(); ++i) {
    EXPECT_EQ(parts[i].more(), i + 1 < parts.size());
    EXPECT_THAT(AddPart(parts[i], whole), IsOk());
    EXPECT_EQ(whole.more(), parts[i].more());
  }
  EXPECT_EQ(parts.back().sets_size(), 1);
  EXPECT_EQ(whole.SerializeAsString(), sets.SerializeAsString());
}

// Whoever sends parts without an end is told before they fill the memory.
TEST(ProcessSetParts, AreNotMoreThanAJobMayHave) {
  v1::ProcessSets part, whole;
  for (int32_t number = 1; number <= kMaxProcessSets / 2; ++number) AddSet(part, number, {0});
  part.set_more(true);
  EXPECT_THAT(AddPart(part, whole), IsOk());
  EXPECT_THAT(AddPart(part, whole), IsOk());
  EXPECT_THAT(AddPart(part, whole), StatusIs(absl::StatusCode::kInvalidArgument,
                                             HasSubstr("expected at most 245760 of")));
}

TEST(ProcessSetParts, AreCheckedAgainstTheSizeOfTheJob) {
  v1::ProcessSets good;
  good.set_last_process_set(3);
  AddSet(good, 1, {0, 2});
  AddSet(good, 3, {0, 2});
  EXPECT_THAT(CheckProcessSets({}, 1), IsOk());
  EXPECT_THAT(CheckProcessSets(good, 3), IsOk());
  const auto refused = [](int32_t number, const std::vector<int32_t>& ranks) {
    v1::ProcessSets sets;
    sets.set_last_process_set(3);
    AddSet(sets, 2, {1});
    AddSet(sets, number, ranks);
    const absl::Status all = CheckProcessSets(sets, 3);
    EXPECT_EQ(CheckProcessSets(sets, 3, /*checked=*/1), all);
    return all;
  };
  EXPECT_THAT(refused(3, {0}), IsOk());
  const auto wrong = StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("behind set 2"));
  EXPECT_THAT(refused(2, {0}), wrong);
  EXPECT_THAT(refused(4, {0}), wrong);
  EXPECT_THAT(refused(3, {}), wrong);
  EXPECT_THAT(refused(3, {-1}), wrong);
  EXPECT_THAT(refused(3, {1, 1}), wrong);
  EXPECT_THAT(refused(3, {2, 3}), wrong);
  v1::ProcessSets none;
  none.set_last_process_set(kProcessSetNumbers);
  EXPECT_THAT(CheckProcessSets(none, 3),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("last process set")));
}

}  // namespace
}  // namespace coordd
