// Where things are: ranks on nodes, tensors in fused buffers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/execute/fusion_layout.h"
#include "worker/interfaces/group_layout.h"
#include "worker/interfaces/peer_status.h"

namespace coordd {
namespace {

using testing::ElementsAre;

TEST(GroupLayout, FindsTheNodeOfEveryRank) {
  const GroupLayout layout(Rank{5}, {{2, 3}, {1, 1}, {3, 2}});  // 3 3 1 2 2 2
  EXPECT_EQ(layout.size(), 13);
  EXPECT_EQ(layout.num_nodes(), 6);
  const std::vector<int32_t> nodes = {0, 0, 0, 1, 1, 1, 2, 3, 3, 4, 4, 5, 5};
  for (int32_t r = 0; r < layout.size(); ++r)
    EXPECT_EQ(layout.node_of(Rank{r}), nodes[static_cast<size_t>(r)]) << r;
  const std::vector<int32_t> firsts = {0, 3, 6, 7, 9, 11};
  const std::vector<int32_t> counts = {3, 3, 1, 2, 2, 2};
  for (int32_t n = 0; n < layout.num_nodes(); ++n) {
    EXPECT_EQ(layout.first_rank_of(n), Rank{firsts[static_cast<size_t>(n)]});
    EXPECT_EQ(layout.ranks_on(n), counts[static_cast<size_t>(n)]);
  }
  EXPECT_TRUE(layout.shares_node(Rank{3}));
  EXPECT_FALSE(layout.shares_node(Rank{6}));
}

TEST(PeerStatus, CarriesTheRankToBlame) {
  const absl::Status status = PeerLost(Rank{3}, "connection reset");
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_EQ(status.message(), "rank 3: connection reset");
  EXPECT_EQ(SuspectRank(status), Rank{3});
  EXPECT_EQ(SuspectRank(absl::UnavailableError("rank 3: no payload")), std::nullopt);
  EXPECT_EQ(SuspectRank(absl::OkStatus()), std::nullopt);
  EXPECT_FALSE(SuspectOf(status)->silent);
}

TEST(PeerStatus, KnowsSilenceFromAnEnd) {
  const absl::Status status = PeerSilent(Rank{3}, "no answer");
  EXPECT_EQ(status.message(), "rank 3: no answer");
  ASSERT_TRUE(SuspectOf(status).has_value());
  EXPECT_EQ(SuspectOf(status)->rank, Rank{3});
  EXPECT_TRUE(SuspectOf(status)->silent);
}

TEST(FusionLayout, PacksTensorsAtCacheLines) {
  const FlatLayout layout = LayOutFlat({10, 0, 64, 65});
  EXPECT_THAT(layout.slots, ElementsAre(FusedRange{0, 10}, FusedRange{64, 0}, FusedRange{64, 64},
                                        FusedRange{128, 65}));
  EXPECT_EQ(layout.total_bytes, 256);
  EXPECT_EQ(LayOutFlat({}).total_bytes, 0);
}

TEST(FusionLayout, GivesEachRankABlockWithItsPartOfEveryTensor) {
  // Two tensors over three ranks; rank 1 has nothing of the first.
  const BlockLayout layout = LayOutBlocks({{8, 0, 4}, {100, 64, 64}}, 3);
  EXPECT_THAT(layout.block_bytes, ElementsAre(64 + 128, 64, 64 + 64));
  EXPECT_THAT(layout.block_offset_bytes, ElementsAre(0, 192, 256));
  EXPECT_THAT(layout.slots[0], ElementsAre(FusedRange{0, 8}, FusedRange{64, 100}));
  EXPECT_THAT(layout.slots[1], ElementsAre(FusedRange{192, 0}, FusedRange{192, 64}));
  EXPECT_THAT(layout.slots[2], ElementsAre(FusedRange{256, 4}, FusedRange{320, 64}));
  EXPECT_EQ(layout.total_bytes, 384);
}

TEST(FusionLayout, LowerRanksGetTheExtraRow) {
  EXPECT_EQ(SplitRows(8, 3, 0), (RowRange{0, 3}));
  EXPECT_EQ(SplitRows(8, 3, 1), (RowRange{3, 3}));
  EXPECT_EQ(SplitRows(8, 3, 2), (RowRange{6, 2}));
}

TEST(FusionLayout, RowsAreSplitWithoutGapOrOverlap) {
  for (int32_t size = 1; size <= 9; ++size) {
    for (int64_t rows = 0; rows <= 30; ++rows) {
      int64_t next = 0;
      for (int32_t r = 0; r < size; ++r) {
        const RowRange range = SplitRows(rows, size, r);
        EXPECT_EQ(range.first, next);
        EXPECT_GE(range.rows, rows / size);
        EXPECT_LE(range.rows, rows / size + 1);
        next += range.rows;
      }
      EXPECT_EQ(next, rows);
    }
  }
}

TEST(GroupLayout, ASubgroupIsWhereItsMembersAre) {
  // Nodes {0, 1, 2}, {3, 4, 5}, {6}.
  const GroupLayout all(Rank{4}, {{2, 3}, {1, 1}});
  const std::vector<Rank> members = {Rank{1}, Rank{2}, Rank{4}, Rank{5}, Rank{6}};
  const GroupLayout sub = all.Subgroup(members);
  EXPECT_EQ(sub.self(), Rank{2});
  EXPECT_EQ(sub.size(), 5);
  EXPECT_EQ(sub.num_nodes(), 3);
  EXPECT_EQ(sub.node_of(Rank{1}), 0);
  EXPECT_EQ(sub.node_of(Rank{3}), 1);
  EXPECT_EQ(sub.ranks_on(2), 1);
  EXPECT_TRUE(sub.shares_node(Rank{3}));
  EXPECT_FALSE(sub.shares_node(Rank{4}));
}

TEST(GroupLayout, ASubgroupLiesInTheRacksOfItsNodes) {
  // Nodes of two in racks of two, in aisles of two.
  const GroupLayout all(Rank{4}, {{8, 2}}, {{0, 0, 0, 0, 1, 1, 1, 1}, {0, 0, 1, 1, 2, 2, 3, 3}});
  const std::vector<Rank> members = {Rank{2}, Rank{4}, Rank{5}, Rank{12}, Rank{14}};
  const std::vector<NodeDomains> kExpected = {{0, 0, 1, 1}, {0, 1, 2, 2}};
  EXPECT_EQ(all.Subgroup(members).levels(), kExpected);
  // Of one aisle there is nothing to say.
  const std::vector<Rank> one_aisle = {Rank{0}, Rank{4}, Rank{6}};
  EXPECT_EQ(all.Subgroup(one_aisle).levels(), (std::vector<NodeDomains>{{0, 1, 1}}));
  const std::vector<Rank> one_node = {Rank{4}, Rank{5}};
  EXPECT_TRUE(all.Subgroup(one_node).levels().empty());
}

}  // namespace
}  // namespace coordd
