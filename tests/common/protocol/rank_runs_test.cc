#include "common/protocol/rank_runs.h"

#include "gtest/gtest.h"

namespace coordd {
namespace {

TEST(RankRunsText, WritesRuns) {
  EXPECT_EQ(RankRunsText({}), "");
  EXPECT_EQ(RankRunsText({3}), "3");
  EXPECT_EQ(RankRunsText({0, 1, 2, 4, 6, 7}), "0-2, 4, 6-7");
}

TEST(RankRunsText, CountsWhatIsBeyondTheMostRuns) {
  EXPECT_EQ(RankRunsText({0, 1, 4, 6, 7}, 2), "0-1, 4 and 2 more");
  EXPECT_EQ(RankRunsText({0, 1, 4}, 2), "0-1, 4");
}

}  // namespace
}  // namespace coordd
