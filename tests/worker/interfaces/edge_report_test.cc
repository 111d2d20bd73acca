// What coordd is told of a rank's edges: once, all of it, and within the protocol's bounds.
#include "worker/interfaces/edge_report.h"

#include <gmock/gmock.h>

#include "common/protocol/protocol_bounds.h"

namespace coordd {
namespace {

using testing::ElementsAre;

TEST(EdgeReport, TellsWhatIsNewOnceToEachWhoAsks) {
  EdgeReport report;
  int64_t told = 0;
  EXPECT_FALSE(report.EdgesBeyond(&told).has_value());
  report.NoteNode(kOverMapped);
  report.NoteRank(Rank{5}, kOverUcxRdma);
  report.NoteRank(Rank{3}, kOverTcp);
  report.NoteRank(Rank{2}, kOverTcp);
  const auto edges = report.EdgesBeyond(&told);
  ASSERT_TRUE(edges.has_value());
  EXPECT_EQ(edges->within_node(), "mapped");
  ASSERT_EQ(edges->between_nodes_size(), 2);
  EXPECT_EQ(edges->between_nodes(0).over(), "tcp");
  EXPECT_EQ(edges->between_nodes(0).ranks(), 2);
  EXPECT_THAT(edges->between_nodes(0).first_ranks(), ElementsAre(2, 3));
  EXPECT_EQ(edges->between_nodes(1).over(), "ucx rdma");
  EXPECT_FALSE(report.EdgesBeyond(&told).has_value());
  report.NoteNode(kOverMapped);  // nothing new
  EXPECT_FALSE(report.EdgesBeyond(&told).has_value());
  int64_t told_anew = 0;  // another stream
  EXPECT_TRUE(report.EdgesBeyond(&told_anew).has_value());
}

TEST(EdgeReport, CountsMoreRanksThanItNames) {
  EdgeReport report;
  for (int32_t rank = 999; rank >= 0; --rank) report.NoteRank(Rank{rank}, kOverTcp);
  int64_t told = 0;
  const auto edges = report.EdgesBeyond(&told);
  ASSERT_TRUE(edges.has_value());
  EXPECT_EQ(edges->between_nodes(0).ranks(), 1000);
  EXPECT_EQ(edges->between_nodes(0).first_ranks_size(), kMaxEdgeRanks);
  EXPECT_EQ(edges->between_nodes(0).first_ranks(0), 0);
}

}  // namespace
}  // namespace coordd
