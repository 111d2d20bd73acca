#include "worker/protocol/cycle_marks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

namespace coordd {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;
using testing::SizeIs;

constexpr absl::Duration kMs = absl::Milliseconds(1);

std::vector<std::pair<int64_t, absl::Duration>> Take(CycleMarks& marks) {
  std::vector<std::pair<int64_t, absl::Duration>> taken;
  for (const CycleMarks::Mark& mark : marks.Take()) taken.emplace_back(mark.cycles, mark.busy);
  return taken;
}

TEST(CycleMarksTest, SumsUpToCompleteCycles) {
  CycleMarks marks({true, true});
  marks.Ended(1, 10 * kMs);
  EXPECT_THAT(Take(marks), IsEmpty());
  marks.Ended(2, 20 * kMs);
  marks.Ended(3, 1 * kMs);
  marks.Ended(4, 2 * kMs);
  EXPECT_THAT(Take(marks), ElementsAre(Pair(1, 30 * kMs), Pair(2, 33 * kMs)));
  EXPECT_THAT(Take(marks), IsEmpty());
}

TEST(CycleMarksTest, BatchesMayEndInAnyOrder) {
  CycleMarks marks({true, true});
  marks.Ended(4, 2 * kMs);
  marks.Ended(2, 20 * kMs);
  marks.Ended(3, 1 * kMs);
  EXPECT_THAT(Take(marks), IsEmpty());
  marks.Ended(1, 10 * kMs);
  EXPECT_THAT(Take(marks), ElementsAre(Pair(1, 30 * kMs), Pair(2, 33 * kMs)));
}

TEST(CycleMarksTest, WhatNeedsNobodyDoesNotCount) {
  CycleMarks marks({false, true});
  marks.Ended(1, 10 * kMs);
  marks.Ended(2, 20 * kMs);
  EXPECT_THAT(Take(marks), ElementsAre(Pair(1, 20 * kMs)));
  CycleMarks nothing({false});
  nothing.Ended(1, 10 * kMs);
  EXPECT_THAT(Take(nothing), IsEmpty());
}

TEST(CycleMarksTest, MarksAreFewAtMultiplesOfAPowerOfTwo) {
  CycleMarks marks({true});
  for (int64_t position = 1; position <= 1000; ++position) marks.Ended(position, kMs);
  EXPECT_THAT(Take(marks),
              ElementsAre(Pair(128, 128 * kMs), Pair(256, 256 * kMs), Pair(384, 384 * kMs),
                          Pair(512, 512 * kMs), Pair(640, 640 * kMs), Pair(768, 768 * kMs),
                          Pair(896, 896 * kMs)));
}

TEST(CycleMarksTest, ComeCloserTogetherAgainWhenAProgramGetsSlower) {
  CycleMarks marks({true});
  int64_t position = 0;
  for (int i = 0; i < 1000; ++i) marks.Ended(++position, kMs);
  EXPECT_THAT(marks.Take(), SizeIs(7));
  int heartbeats = 0;
  for (bool told = false; !told; ++heartbeats) {
    marks.Ended(++position, kMs);
    told = !marks.Take().empty();
    ASSERT_LT(heartbeats, 20);
  }
  marks.Ended(++position, kMs);
  marks.Ended(++position, kMs);
  EXPECT_THAT(marks.Take(), Not(IsEmpty()));
}

}  // namespace
}  // namespace coordd
