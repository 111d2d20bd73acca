#include "worker/host/host_choice.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace coordd {
namespace {

constexpr int64_t kInlineMax = 4096;

// Nodes of one rank each.
HostGroup Apart(int32_t nodes, std::vector<NodeDomains> racks) {
  return MakeHostGroup(GroupLayout(Rank{0}, {{nodes, 1}}, std::move(racks)), {}, Rank{0}, {});
}

// With blocks, where it has some, of as many bytes each.
CollectiveArgs ArgsOf(CollectiveKind kind, std::vector<std::byte>& bytes, int32_t ranks) {
  const absl::Span<std::byte> all = absl::MakeSpan(bytes);
  const size_t each = bytes.size() / static_cast<size_t>(ranks);
  CollectiveArgs args;
  args.kind = kind;
  args.input = kind == CollectiveKind::kAllgather ? all.first(each) : all;
  args.output = kind == CollectiveKind::kReducescatter ? all.first(each) : all;
  return args;
}

TEST(HostChoice, GoesByDimensionsWhereRacksAreKnownAndNobodyWantsFlat) {
  const HostGroup racks = Apart(4, {{0, 0, 1, 1}});
  const HostGroup plain = Apart(5, {});  // a number without factors
  std::vector<std::byte> small(1 << 10), large(1 << 20);
  for (const auto& [kind, flat] : {std::pair{CollectiveKind::kAllgather, Algorithm::kRing},
                                   {CollectiveKind::kReducescatter, Algorithm::kPairwise}}) {
    EXPECT_TRUE(HasOthers(kind, racks));
    EXPECT_FALSE(HasOthers(kind, plain));
    for (const HostAlgorithm agreed : {HostAlgorithm::kAuto, HostAlgorithm::kHierarchical}) {
      EXPECT_EQ(AgreedChoice(ArgsOf(kind, small, 4), racks, agreed, kInlineMax),
                Algorithm::kDimensions);
      EXPECT_EQ(AgreedChoice(ArgsOf(kind, large, 4), racks, agreed, kInlineMax),
                Algorithm::kSlices);
    }
    const CollectiveArgs args = ArgsOf(kind, large, 4);
    EXPECT_EQ(AgreedChoice(args, racks, HostAlgorithm::kFlat, kInlineMax), flat);
    EXPECT_EQ(FlatAlgorithm(args, plain), flat);
    EXPECT_EQ(NameOf(Algorithm::kSlices, kind, racks), "slices_by_dimensions");
  }
  EXPECT_TRUE(HasOthers(CollectiveKind::kAllreduce, plain));
}

TEST(HostChoice, GoesByTheFactorsOfTheNumberOfNodesWhereNoRacksAreKnown) {
  const HostGroup plain = Apart(12, {});
  EXPECT_FALSE(plain.has_labels);
  std::vector<std::byte> small(12 << 8), large(12 << 17);
  for (const CollectiveKind kind : {CollectiveKind::kAllgather, CollectiveKind::kReducescatter}) {
    EXPECT_TRUE(HasOthers(kind, plain));
    EXPECT_EQ(AgreedChoice(ArgsOf(kind, small, 12), plain, HostAlgorithm::kAuto, kInlineMax),
              Algorithm::kDimensions);
    EXPECT_EQ(AgreedChoice(ArgsOf(kind, large, 12), plain, HostAlgorithm::kAuto, kInlineMax),
              Algorithm::kSlices);
  }
}

TEST(HostChoice, CutsALargeBroadcastAmongMoreThanTwoNodes) {
  std::vector<std::byte> small(1 << 17), large(1 << 18);
  const auto choice = [](std::vector<std::byte>& bytes, int32_t nodes) {
    return AgreedChoice(ArgsOf(CollectiveKind::kBroadcast, bytes, nodes), Apart(nodes, {}),
                        HostAlgorithm::kAuto, kInlineMax);
  };
  EXPECT_FALSE(HasOthers(CollectiveKind::kBroadcast, Apart(2, {})));
  EXPECT_TRUE(HasOthers(CollectiveKind::kBroadcast, Apart(3, {})));
  EXPECT_EQ(choice(small, 4), Algorithm::kBinomialTree);
  EXPECT_EQ(choice(large, 4), Algorithm::kSlices);
  EXPECT_EQ(choice(large, 2), Algorithm::kBinomialTree);
}

TEST(HostChoice, NamesNoDimensionsOfWhatHasNone) {
  const HostGroup racks = Apart(4, {{0, 0, 1, 1}});
  EXPECT_EQ(NameOf(Algorithm::kHierarchical, CollectiveKind::kAllgather, racks),
            "hierarchical_by_dimensions");
  EXPECT_EQ(NameOf(Algorithm::kHierarchical, CollectiveKind::kBroadcast, racks), "hierarchical");
  EXPECT_EQ(NameOf(Algorithm::kSlices, CollectiveKind::kAllreduce, Apart(5, {})), "slices");
}

// Racks whose grid has many steps: an allreduce that is small does without.
TEST(HostChoice, OfALongGridDependsOnTheKind) {
  NodeDomains racks;
  for (int32_t node = 0; node < 77; ++node) racks.push_back(node / 11);
  const HostGroup group = Apart(77, {racks});
  std::vector<std::byte> bytes(77 << 10);
  EXPECT_EQ(AgreedChoice(ArgsOf(CollectiveKind::kAllreduce, bytes, 77), group, HostAlgorithm::kAuto,
                         kInlineMax),
            Algorithm::kHalvingDoubling);
  EXPECT_EQ(AgreedChoice(ArgsOf(CollectiveKind::kAllgather, bytes, 77), group, HostAlgorithm::kAuto,
                         kInlineMax),
            Algorithm::kDimensions);
}

}  // namespace
}  // namespace coordd
