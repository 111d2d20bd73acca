// One rank for all: where it holds, what is said of it is what is said of all of them.
#include "bench/model/symmetry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/model/collective.h"
#include "worker/algorithms/recursive_schedule.h"
#include "worker/algorithms/ring_schedule.h"
#include "worker/algorithms/tree_schedule.h"

namespace coordd::model {
namespace {

using testing::ElementsAre;

TEST(Symmetry, CountsDigitByDigit) {
  const Symmetry bits{1, {2, 2, 2}};
  EXPECT_EQ(bits.Distance(5, 6), 3);  // 101 and 110
  const Symmetry row{2, {4}};
  EXPECT_EQ(row.Distance(7, 0), 1);  // behind the last one comes the first
}

TEST(Symmetry, RingsAndPowersOfTwoHaveOneRankForAll) {
  const auto ring = [](Rank self) { return RingAllreduce(self, 12, 48, 4); };
  EXPECT_THAT(SymmetryOf(ring, 12, 12).digits, ElementsAre(12));
  const auto halving = [](Rank self) { return HalvingDoublingAllreduce(self, 8, 64, 4); };
  EXPECT_THAT(SymmetryOf(halving, 8, 8).digits, ElementsAre(2, 2, 2));
}

TEST(Symmetry, TreesFoldsAndUnevenBlocksHaveNone) {
  const auto tree = [](Rank self) { return BinomialBroadcast(self, 8, Rank{0}, 4); };
  EXPECT_EQ(SymmetryOf(tree, 8, 8).classes, 8);
  const auto fold = [](Rank self) { return HalvingDoublingAllreduce(self, 6, 96, 4); };
  EXPECT_EQ(SymmetryOf(fold, 6, 6).classes, 6);
  const auto uneven = [](Rank self) { return RingAllreduce(self, 6, 28, 4); };
  EXPECT_EQ(SymmetryOf(uneven, 6, 6).classes, 6);
}

// Of all ways of all kinds, in racks that are known, or not, or that there are not.
TEST(Symmetry, SaysOfOneRankWhatAllOfThemDo) {
  int32_t held = 0;
  for (const CollectiveKind kind :
       {CollectiveKind::kAllreduce, CollectiveKind::kAllgather, CollectiveKind::kReducescatter,
        CollectiveKind::kBroadcast, CollectiveKind::kAlltoall}) {
    for (const int32_t racks : {1, 2, 3, 4}) {
      for (const bool labelled : {false, true}) {
        const Network network{.racks = racks, .oversubscription = 3};
        const int32_t nodes = 4 * racks;
        const Collective collective{kind, 48 * 1024, nodes, labelled};
        for (const Way& way : WaysOf(collective, network)) {
          const Symmetry symmetry = SymmetryOf(way.make, nodes, 4);
          held += symmetry.classes < nodes ? 1 : 0;
          const auto time = [&](const Symmetry& of) {
            auto table = TableOf(way.make, of, nodes, 4, 256 << 10);
            EXPECT_TRUE(table.ok()) << way.name << ": " << table.status();
            return MicrosecondsOf(*table, network, nodes, way.pieces);
          };
          EXPECT_NEAR(time(symmetry), time({nodes, {}}), 1e-6)
              << way.name << " of " << nodes << " nodes in " << racks << " racks";
        }
      }
    }
  }
  EXPECT_GT(held, 50);
}

}  // namespace
}  // namespace coordd::model
