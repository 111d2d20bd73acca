#include "server/job/said_sets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

constexpr int32_t kSets = 10;

// Says `sets` sets of ranks 0 and `other`, in two parts.
SaidSets Said(int32_t other = 1, int32_t sets = kSets) {
  SaidSets said;
  for (int32_t part = 0; part < 2; ++part) {
    v1::ProcessSets some;
    for (int32_t number = part * sets / 2 + 1; number <= (part + 1) * sets / 2; ++number) {
      v1::ProcessSet& set = *some.add_sets();
      set.set_process_set(number);
      set.add_ranks(0);
      set.add_ranks(other);
    }
    some.set_last_process_set(sets);
    some.set_more(part == 0);
    EXPECT_THAT(said.Add(some, /*size=*/8), IsOk());
  }
  return said;
}

int64_t PiecesOf(KeptSets& kept) {
  const std::unique_ptr<Remains> dead = kept.TakeDead();
  return dead == nullptr ? 0 : dead->Free(1000);
}

TEST(KeptSets, WhatAllSayAlikeIsKeptOnce) {
  KeptSets kept;
  const KeptSets::Kept first = kept.Keep(Said());
  EXPECT_TRUE(first.IsAlone());
  EXPECT_GT(first.space, 0);
  const KeptSets::Kept second = kept.Keep(Said());
  EXPECT_EQ(first.sets, second.sets);
  EXPECT_FALSE(first.IsAlone());
  EXPECT_NE(kept.Keep(Said(/*other=*/2)).sets, first.sets);
  ASSERT_EQ(first.sets->sets_size(), kSets);
  EXPECT_FALSE(first.sets->more());
  EXPECT_EQ(kept.Keep(SaidSets()).sets, nullptr);
}

TEST(KeptSets, WhatNobodyHasIsFreedInParts) {
  KeptSets kept;
  KeptSets::Kept first = kept.Keep(Said());
  EXPECT_EQ(kept.TakeDead(), nullptr);
  kept.Keep(Said());  // there already
  std::unique_ptr<Remains> dead = kept.TakeDead();
  ASSERT_NE(dead, nullptr);
  EXPECT_EQ(dead->Free(kSets / 2), kSets / 2);
  EXPECT_EQ(dead->Free(1000), kSets / 2 + 1);
  EXPECT_EQ(dead->Free(1000), 0);
  EXPECT_EQ(first.sets->sets_size(), kSets);
  first = {};
  EXPECT_EQ(PiecesOf(kept), kSets + 1);
  kept.Forget(Said());
  EXPECT_EQ(PiecesOf(kept), kSets + 1);
  // The same, said again, is another one.
  EXPECT_EQ(kept.Keep(Said()).sets->sets_size(), kSets);
}

TEST(KeptSets, WhatOutlivesItIsThereAllTheSame) {
  KeptSets::Kept last;
  {
    KeptSets kept;
    last = kept.Keep(Said());
  }
  EXPECT_EQ(last.sets->sets_size(), kSets);
}

TEST(SaidSets, NoneOfTheGenerationAreRefused) {
  SaidSets said = Said();
  v1::ProcessSets again;
  again.set_last_process_set(kSets);
  v1::ProcessSet& set = *again.add_sets();
  set.set_process_set(kSets);
  set.add_ranks(0);
  EXPECT_EQ(said.Add(again, 8).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace coordd
