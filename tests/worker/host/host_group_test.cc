#include "worker/host/host_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace coordd {
namespace {

using testing::ElementsAre;

// Ranks 0 to 2, 3 and 4, 5.
GroupLayout ThreeNodes(int32_t self) { return GroupLayout(Rank{self}, {{1, 3}, {1, 2}, {1, 1}}); }

std::vector<NodeMemory> MemoriesFor(int32_t ranks) {
  static std::byte bytes[8];
  std::vector<NodeMemory> memories;
  for (int32_t i = 0; i < ranks; ++i)
    memories.push_back(absl::MakeSpan(bytes).subspan(static_cast<size_t>(i), 1));
  return memories;
}

TEST(HostGroup, OfNodesOfDifferentSizesAsManyCarryAsTheSmallestHas) {
  const HostGroup first = MakeHostGroup(ThreeNodes(0), {}, Rank{0}, MemoriesFor(3));
  EXPECT_EQ(first.places, Places::kUnevenNodes);
  EXPECT_EQ(first.carriers, 1);
  EXPECT_EQ(first.memories.size(), 3u);
  EXPECT_THAT(first.across, ElementsAre(Rank{0}, Rank{3}, Rank{5}));
  EXPECT_TRUE(AcrossOf(first, {}).carries);
  const HostGroup second = MakeHostGroup(ThreeNodes(4), {}, Rank{3}, MemoriesFor(2));
  EXPECT_EQ(second.self_on_node, 1);
  EXPECT_THAT(second.neighbours, ElementsAre(Rank{3}, Rank{4}));
  EXPECT_FALSE(AcrossOf(second, {}).carries);
  EXPECT_EQ(AcrossOf(second, {}).self, 1);
  // Alone on its node, it needs no memory there.
  const HostGroup last = MakeHostGroup(ThreeNodes(5), {}, Rank{5}, {});
  EXPECT_EQ(last.places, Places::kUnevenNodes);
  EXPECT_TRUE(last.memories.empty());
}

TEST(HostGroup, SaysWhatItsNodesAreLike) {
  auto places = [](std::vector<NodeRun> nodes, int32_t own_memories) {
    return MakeHostGroup(GroupLayout(Rank{0}, std::move(nodes)), {}, Rank{0},
                         MemoriesFor(own_memories))
        .places;
  };
  EXPECT_EQ(places({{2, 2}}, 2), Places::kEvenNodes);
  EXPECT_EQ(places({{1, 2}, {1, 1}}, 2), Places::kThinNodes);
  EXPECT_EQ(places({{1, 1}, {1, 3}}, 0), Places::kUnevenNodes);
  EXPECT_EQ(places({{3, 1}}, 0), Places::kApart);
  EXPECT_EQ(places({{1, 3}}, 3), Places::kAny);  // one node has one way
  EXPECT_EQ(places({{2, 2}}, 0), Places::kAny);  // not mapped
  // On some node more than a lane may have.
  EXPECT_EQ(places({{1, 1}, {1, NodeLane::kMaxMembers + 1}}, 0), Places::kAny);
}

TEST(HostGroup, KnowsInWhichRacksItsNodesLie) {
  auto in_racks = [](std::vector<NodeRun> nodes, int32_t own_memories) {
    GroupLayout layout(Rank{0}, std::move(nodes), {{0, 0, 1, 1}});
    return MakeHostGroup(std::move(layout), {}, Rank{0}, MemoriesFor(own_memories));
  };
  const HostGroup apart = in_racks({{4, 1}}, 0);
  EXPECT_EQ(apart.places, Places::kApartInGrid);
  EXPECT_THAT(apart.grid.sizes, ElementsAre(2, 2));
  EXPECT_EQ(AcrossOf(apart, {}).grid, &apart.grid);
  // One rank of each node exchanges slices, as if it were alone there.
  const HostGroup together = in_racks({{4, 2}}, 2);
  EXPECT_EQ(together.places, Places::kEvenNodes);
  EXPECT_THAT(together.grid.sizes, ElementsAre(2, 2));
  EXPECT_THAT(in_racks({{1, 2}, {3, 3}}, 2).grid.sizes, ElementsAre(2, 2));
  // A rank of each rack: between them there is nothing to save.
  const std::vector<Rank> members = {Rank{0}, Rank{2}};
  const GroupLayout all(Rank{0}, {{4, 1}}, {{0, 0, 1, 1}});
  const HostGroup set = MakeHostGroup(all.Subgroup(members), members, Rank{0}, {});
  EXPECT_EQ(set.places, Places::kApart);
}

TEST(HostGroup, WithoutLabelsItsNumberOfNodesMakesAGrid) {
  const auto apart = [](int32_t nodes) {
    return MakeHostGroup(GroupLayout(Rank{0}, {{nodes, 1}}, {}), {}, Rank{0}, {});
  };
  EXPECT_THAT(apart(12).grid.sizes, ElementsAre(2, 2, 3));
  EXPECT_EQ(apart(12).places, Places::kApartInGrid);
  EXPECT_EQ(apart(49).places, Places::kApartInLongGrid);
  EXPECT_TRUE(apart(2).grid.empty());
  EXPECT_TRUE(apart(7).grid.empty());
  EXPECT_TRUE(apart(34).grid.empty());  // a ring of 17
  // Several ranks on each exchange slices as before.
  EXPECT_TRUE(
      MakeHostGroup(GroupLayout(Rank{0}, {{4, 2}}, {}), {}, Rank{0}, MemoriesFor(2)).grid.empty());
}

TEST(HostGroup, ARootLeadsItsNode) {
  CollectiveArgs args;
  args.kind = CollectiveKind::kBroadcast;
  args.root = Rank{4};
  const NodeLeaders own =
      LeadersOf(MakeHostGroup(ThreeNodes(3), {}, Rank{3}, MemoriesFor(2)), args);
  EXPECT_THAT(own.ranks, ElementsAre(Rank{0}, Rank{4}, Rank{5}));
  EXPECT_THAT(own.members, ElementsAre(3, 2, 1));
  EXPECT_EQ(own.node, 1);
  EXPECT_EQ(own.root_node, 1);
  EXPECT_EQ(own.leader, 1);
  const NodeLeaders other =
      LeadersOf(MakeHostGroup(ThreeNodes(1), {}, Rank{0}, MemoriesFor(3)), args);
  EXPECT_EQ(other.root_node, 1);
  EXPECT_EQ(other.leader, 0);
  const AcrossNodes across =
      AcrossOf(MakeHostGroup(ThreeNodes(1), {}, Rank{0}, MemoriesFor(3)), args);
  EXPECT_EQ(across.root, 1);
  EXPECT_EQ(across.root_member, 1);
  args.kind = CollectiveKind::kAllreduce;  // which has none
  EXPECT_EQ(LeadersOf(MakeHostGroup(ThreeNodes(3), {}, Rank{3}, MemoriesFor(2)), args).leader, 0);
}

// A process set: ranks 1, 2, 4 and 5 of six, counted from 0 in it.
TEST(HostGroup, OfAProcessSetNamesRanksOfTheTransport) {
  const std::vector<Rank> members = {Rank{1}, Rank{2}, Rank{4}, Rank{5}};
  const std::vector<NodeMemory> node = MemoriesFor(3);
  const HostGroup group = MakeHostGroup(ThreeNodes(2).Subgroup(members), members, Rank{0}, node);
  EXPECT_THAT(group.neighbours, ElementsAre(Rank{1}, Rank{2}));
  EXPECT_EQ(group.memories[0].data(), node[1].data());
  EXPECT_EQ(group.memories[1].data(), node[2].data());
  EXPECT_THAT(group.across, ElementsAre(Rank{1}, Rank{4}, Rank{5}));  // not a carrier
  EXPECT_EQ(group.places, Places::kThinNodes);
}

}  // namespace
}  // namespace coordd
