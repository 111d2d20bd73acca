#include "common/protocol/slot_dictionary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace coordd {
namespace {

using testing::ElementsAre;

TEST(SlotDictionaryTest, GivesNumbersInOrder) {
  SlotDictionary<int> slots;
  EXPECT_EQ(slots.newest(), 0);
  slots.Add("a", 10);
  slots.Add("b", 20);
  EXPECT_EQ(slots.newest(), 2);
  EXPECT_EQ(slots.SlotOf("b"), 2);
  EXPECT_EQ(slots.SlotOf("c"), 0);
  EXPECT_EQ(slots.Find(1)->value, 10);
  EXPECT_EQ(slots.Find(0), nullptr);
  EXPECT_EQ(slots.Find(3), nullptr);
}

TEST(SlotDictionaryTest, TheOldestAreForgotten) {
  SlotDictionary<int> slots;
  for (int i = 1; i <= 5; ++i) slots.Add("t" + std::to_string(i), i);
  std::vector<int> forgotten;
  EXPECT_EQ(slots.ForgetUpTo(3, [&](const auto& entry) { forgotten.push_back(entry.value); }), 3);
  EXPECT_THAT(forgotten, ElementsAre(1, 2, 3));
  EXPECT_EQ(slots.oldest(), 4);
  EXPECT_EQ(slots.Find(3), nullptr);
  EXPECT_EQ(slots.SlotOf("t3"), 0);
  EXPECT_EQ(slots.Find(4)->name, "t4");
  EXPECT_EQ(slots.ForgetUpTo(100), 2);
  slots.Add("again", 6);
  EXPECT_EQ(slots.newest(), 6) << "no number is used twice";
  EXPECT_EQ(slots.Find(6)->name, "again");
}

TEST(SlotDictionaryTest, ANameHasItsNewestNumber) {
  SlotDictionary<int> slots;
  slots.Add("a", 1);
  slots.Add("b", 2);
  slots.Add("a", 3);
  EXPECT_EQ(slots.SlotOf("a"), 3);
  EXPECT_EQ(slots.Find(1)->value, 1) << "what is under way may still mean it";
  slots.ForgetUpTo(1);
  EXPECT_EQ(slots.SlotOf("a"), 3);
  slots.ForgetUpTo(3);
  EXPECT_EQ(slots.SlotOf("a"), 0);
}

TEST(SlotBitsTest, SayWhichSlotsAreIn) {
  for (const std::vector<int64_t>& slots : std::vector<std::vector<int64_t>>{
           {1}, {7, 8, 9}, {5, 1}, {100, 108, 116}, {4096, 1, 2000}}) {
    const SlotBits packed = PackSlots(slots);
    std::vector<int64_t> found;
    EXPECT_TRUE(ForEachSlot(packed.first, packed.bits, [&](int64_t slot) {
      found.push_back(slot);
      return true;
    }));
    EXPECT_THAT(found, testing::UnorderedElementsAreArray(slots));
  }
  EXPECT_FALSE(ForEachSlot(1, "\xff", [](int64_t slot) { return slot < 3; }));
  EXPECT_TRUE(ForEachSlot(1, "", [](int64_t) { return false; })) << "none";
}

}  // namespace
}  // namespace coordd
