#include "common/protocol/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/random.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TopologyMember MemberOn(const std::string& node, int32_t launcher_rank = -1, int32_t slot = -1,
                        std::vector<std::string> labels = {}) {
  return TopologyMember{.worker_id = absl::StrCat("w", launcher_rank, "-", slot),
                        .node_id = node,
                        .labels = std::move(labels),
                        .launcher_rank = launcher_rank,
                        .launcher_local_rank = slot};
}

TEST(Topology, PutsRanksOfANodeTogetherInOrderOfArrivalWithoutHints) {
  const Topology topology =
      OrderRanks({MemberOn("b"), MemberOn("a"), MemberOn("b"), MemberOn("a")});
  EXPECT_THAT(topology.member_of_rank, ElementsAre(0, 2, 1, 3));
  EXPECT_THAT(topology.runs, ElementsAre(NodeRun{2, 2}));
}

TEST(Topology, KeepsTheLaunchersOrderOfNodesAndSlots) {
  const Topology topology = OrderRanks(
      {MemberOn("n1", 3, 1), MemberOn("n1", 2, 0), MemberOn("n0", 1, 1), MemberOn("n0", 0, 0)});
  EXPECT_THAT(topology.member_of_rank, ElementsAre(3, 2, 1, 0));
}

TEST(Topology, OrdersByLabelsBeforeTheLaunchersRank) {
  const Topology topology = OrderRanks({MemberOn("n0", 0, 0, {"aisle2", "rack1"}),
                                        MemberOn("n1", 1, 0, {"aisle1", "rack9"}),
                                        MemberOn("n2", 2, 0, {"aisle1", "rack3"})});
  EXPECT_THAT(topology.member_of_rank, ElementsAre(2, 1, 0));
}

TEST(Topology, PutsMembersWithoutHintsBehindThoseWithOne) {
  const Topology topology =
      OrderRanks({MemberOn("x"), MemberOn("n", -1, -1), MemberOn("n", 5, 1), MemberOn("n", 4, 0)});
  EXPECT_THAT(topology.member_of_rank, ElementsAre(3, 2, 1, 0));
}

TEST(Topology, CountsCrossRanksAmongNodesThatHaveTheLocalRank) {
  // Nodes of 1, 3 and 2 ranks: local rank 1 exists on two of them, local rank 2 on one.
  const Topology topology = OrderRanks(
      {MemberOn("a"), MemberOn("b"), MemberOn("b"), MemberOn("b"), MemberOn("c"), MemberOn("c")});
  ASSERT_EQ(topology.places.size(), 6u);
  EXPECT_THAT(topology.runs, ElementsAre(NodeRun{1, 1}, NodeRun{1, 3}, NodeRun{1, 2}));
  EXPECT_EQ(topology.places[1], (Place{Rank{1}, 6, 0, 3, 1, 3}));
  EXPECT_EQ(topology.places[2], (Place{Rank{2}, 6, 1, 3, 0, 2}));
  EXPECT_EQ(topology.places[3], (Place{Rank{3}, 6, 2, 3, 0, 1}));
  EXPECT_EQ(topology.places[5], (Place{Rank{5}, 6, 1, 2, 1, 2}));
}

TEST(Topology, EncodesEqualNodesAsOneRun) {
  std::vector<TopologyMember> members;
  for (int node = 0; node < 1000; ++node) {
    for (int slot = 0; slot < 8; ++slot) members.push_back(MemberOn(absl::StrCat("n", node)));
  }
  EXPECT_THAT(OrderRanks(members).runs, ElementsAre(NodeRun{1000, 8}));
}

// --- levels ---

std::vector<TopologyMember> NodesWith(const std::vector<std::vector<std::string>>& labels) {
  std::vector<TopologyMember> members;
  for (size_t i = 0; i < labels.size(); ++i)
    members.push_back(MemberOn(absl::StrCat("n", i), static_cast<int32_t>(i), 0, labels[i]));
  return members;
}

TEST(Topology, SaysWhichNodesLieInARackAndWhichRacksInAnAisle) {
  const Topology topology = OrderRanks(
      NodesWith({{"a", "1"}, {"a", "1"}, {"b", "1"}, {"b", "1"}, {"b", "2"}, {"b", "2"}}));
  EXPECT_THAT(topology.levels, ElementsAre(ElementsAre(DomainRun{0, 1, 2}, DomainRun{1, 1, 4}),
                                           ElementsAre(DomainRun{0, 3, 2})));
}

TEST(Topology, LeavesOutALevelOfOneDomain) {
  EXPECT_THAT(OrderRanks(NodesWith({{"a", "1"}, {"a", "2"}})).levels,
              ElementsAre(ElementsAre(DomainRun{0, 2, 1})));
  EXPECT_THAT(OrderRanks(NodesWith({{"a"}, {"a"}})).levels, IsEmpty());
  EXPECT_THAT(OrderRanks(NodesWith({{}, {}})).levels, IsEmpty());
  EXPECT_THAT(OrderRanks({}).levels, IsEmpty());
}

TEST(Topology, SaysTheLevelsOfALargeJobInAFewBytes) {
  std::vector<std::vector<std::string>> labels;
  for (int node = 0; node < 4096; ++node)
    labels.push_back(
        {absl::StrFormat("aisle%02d", node / 256), absl::StrFormat("%03d", node / 16)});
  EXPECT_THAT(OrderRanks(NodesWith(labels)).levels,
              ElementsAre(ElementsAre(DomainRun{0, 16, 256}), ElementsAre(DomainRun{0, 256, 16})));
}

TEST(Topology, KnowsARackWhoseNodesDoNotLieTogether) {
  std::vector<TopologyMember> members = NodesWith({{"a"}, {"b"}, {"a"}, {"b"}, {"c"}});
  for (size_t i = 0; i < members.size(); ++i) members[i].previous_rank = static_cast<int32_t>(i);
  EXPECT_THAT(OrderRanks(members).levels,
              ElementsAre(ElementsAre(DomainRun{0, 2, 1}, DomainRun{0, 3, 1})));
}

TEST(Topology, LeavesOutALevelThatTakesTooManyRuns) {
  std::vector<std::vector<std::string>> labels;
  for (int rack = 0; rack < 1025; ++rack) {
    for (int node = 0; node <= rack % 2; ++node) labels.push_back({absl::StrFormat("%04d", rack)});
  }
  EXPECT_THAT(OrderRanks(NodesWith(labels)).levels, IsEmpty());
  labels.pop_back();
  EXPECT_THAT(OrderRanks(NodesWith(labels)).levels, ElementsAre(testing::SizeIs(1024)));
}

TEST(Topology, RefusesTwoSetsOfLabelsForOneNodeAndNamesBothSides) {
  EXPECT_THAT(
      CheckTopology(MemberOn("n", 1, 0, {"a", "r1"}), MemberOn("n", 2, 0, {"a", "r2"})),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               AllOf(HasSubstr("w1-0"), HasSubstr("a/r1"), HasSubstr("w2-0"), HasSubstr("a/r2"))));
}

TEST(Topology, RefusesDifferentDepthsAndNamesBothSides) {
  EXPECT_THAT(CheckTopology(MemberOn("n", 1), MemberOn("m", 2, 0, {"a"})),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("no topology labels"), HasSubstr("topology a"))));
  EXPECT_THAT(CheckTopology(MemberOn("n", 1, 0, {"b"}), MemberOn("m", 2, 0, {"a"})), IsOk());
}

// Every member gets exactly one rank; nodes are consecutive; places agree with a recount.
TEST(Topology, IsABijectionForAnyMembers) {
  Random random(7);
  for (int round = 0; round < 500; ++round) {
    std::vector<TopologyMember> members;
    const int size = 1 + static_cast<int>(random.Below(40));
    for (int i = 0; i < size; ++i) {
      const auto node = random.Below(1 + random.Below(12));
      members.push_back(
          MemberOn(absl::StrCat("n", node), static_cast<int32_t>(random.Below(50)) - 1,
                   static_cast<int32_t>(random.Below(5)) - 1, {absl::StrCat("r", node % 3)}));
    }
    const Topology topology = OrderRanks(members);
    ASSERT_EQ(
        std::set<size_t>(topology.member_of_rank.begin(), topology.member_of_rank.end()).size(),
        members.size());
    std::map<int32_t, int32_t> nodes_with;  // local rank -> nodes
    std::set<std::string> seen_nodes;
    std::string previous;
    for (const Place& place : topology.places) {
      const TopologyMember& member =
          members[topology.member_of_rank[static_cast<size_t>(place.rank.value)]];
      if (place.local_rank == 0) {
        ASSERT_TRUE(seen_nodes.insert(member.node_id).second) << "a node is split";
      } else {
        ASSERT_EQ(member.node_id, previous);
      }
      previous = member.node_id;
      ASSERT_EQ(place.cross_rank, nodes_with[place.local_rank]++);
    }
    for (const Place& place : topology.places) {
      ASSERT_EQ(place.cross_size, nodes_with[place.local_rank]);
    }
    int32_t ranks = 0;
    for (const NodeRun& run : topology.runs) ranks += run.nodes * run.ranks_per_node;
    ASSERT_EQ(ranks, size);
  }
}

}  // namespace
}  // namespace coordd
