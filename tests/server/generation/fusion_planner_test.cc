#include "server/generation/fusion_planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "tests/server/support/builders.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::vector<size_t>> Plan(const std::vector<TensorSpec>& specs,
                                      const FusionOptions& options = {}) {
  std::vector<FusionInput> inputs;
  for (const TensorSpec& spec : specs) inputs.push_back({&spec, SizeBytes(spec)});
  return PlanFusion(inputs, options);
}

TEST(FusionPlanner, PlansNothingFromNothing) { EXPECT_THAT(Plan({}), IsEmpty()); }

TEST(FusionPlanner, FusesWhatIsAlike) {
  EXPECT_THAT(Plan({Gradient("a", {4}), Gradient("b", {9}), Gradient("c", {})}),
              ElementsAre(ElementsAre(0, 1, 2)));
}

TEST(FusionPlanner, CountsTensorsWithTheirAlignment) {
  // 4 bytes take 64: two fit into 128.
  const std::vector<TensorSpec> three = {Gradient("a", {1}), Gradient("b", {1}),
                                         Gradient("c", {1})};
  EXPECT_THAT(Plan(three, {.max_batch_bytes = 128}),
              ElementsAre(ElementsAre(0, 1), ElementsAre(2)));
  EXPECT_THAT(Plan(three, {.max_batch_bytes = 127}),
              ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2)));
}

TEST(FusionPlanner, GivesALargerTensorABatchOfItsOwn) {
  EXPECT_THAT(Plan({Gradient("a", {1}), Gradient("large", {1000}), Gradient("b", {1})},
                   {.max_batch_bytes = 1024}),
              ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2)));
}

TEST(FusionPlanner, LeavesLargeHostTensorsWhereTheyAre) {
  std::vector<TensorSpec> specs = {Gradient("a", {1}), Gradient("large", {1 << 18}),
                                   Gradient("b", {1})};
  EXPECT_THAT(Plan(specs), ElementsAre(ElementsAre(0, 2), ElementsAre(1)));
  // Packing costs a device next to nothing.
  for (TensorSpec& spec : specs) spec.memory = MemoryKind::kCuda;
  EXPECT_THAT(Plan(specs), ElementsAre(ElementsAre(0, 1, 2)));
}

TEST(FusionPlanner, KeepsTheOrderWithinAKeyAlthoughAnEarlierBatchHasRoom) {
  EXPECT_THAT(Plan({Gradient("a", {200}), Gradient("b", {200}), Gradient("c", {1})},
                   {.max_batch_bytes = 1024}),
              ElementsAre(ElementsAre(0), ElementsAre(1, 2)));
}

TEST(FusionPlanner, SeparatesEverythingThatMakesADifference) {
  std::vector<TensorSpec> specs(7, Gradient("a", {4}));
  specs[1].dtype = DataType::kFloat64;
  specs[2].op = ReduceOp::kMax;
  specs[3].prescale_factor = 0.5;
  specs[4].postscale_factor = 0.5;
  specs[5].memory = MemoryKind::kCuda;
  specs[6].process_set = ProcessSetId{1};
  EXPECT_EQ(Plan(specs).size(), specs.size());
}

TEST(FusionPlanner, SeparatesBroadcastsByRoot) {
  std::vector<TensorSpec> specs(3, Gradient("a", {4}));
  for (TensorSpec& spec : specs) {
    spec.kind = CollectiveKind::kBroadcast;
    spec.op = ReduceOp::kNone;
  }
  specs[1].root_rank = 1;
  EXPECT_THAT(Plan(specs), ElementsAre(ElementsAre(0, 2), ElementsAre(1)));
}

TEST(FusionPlanner, NeverFusesAlltoallsAndBarriers) {
  std::vector<TensorSpec> specs(4, Gradient("a", {4}));
  specs[0].kind = specs[1].kind = CollectiveKind::kAlltoall;
  specs[2].kind = specs[3].kind = CollectiveKind::kBarrier;
  EXPECT_EQ(Plan(specs).size(), 4u);
}

TEST(FusionPlanner, FusesTensorsWhoseFactorIsNotANumber) {
  std::vector<TensorSpec> specs(2, Gradient("a", {4}));
  for (TensorSpec& spec : specs) spec.prescale_factor = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(Plan(specs), ElementsAre(ElementsAre(0, 1)));
}

TEST(FusionPlanner, BoundsTheTensorsOfABatch) {
  const std::vector<TensorSpec> specs(5, Gradient("a", {1}));
  EXPECT_THAT(Plan(specs, {.max_batch_tensors = 2}),
              ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3), ElementsAre(4)));
}

// For any tensors: none is split or lost, keys keep their order and do not mix, only a tensor that
// is alone exceeds the bound, and no two neighbouring batches of a key could have been one.
TEST(FusionPlanner, NeverSplitsLosesOrReorders) {
  Random random(11);
  for (int round = 0; round < 500; ++round) {
    std::vector<TensorSpec> specs;
    for (uint64_t i = random.Below(60); i > 0; --i) {
      TensorSpec spec = Gradient(absl::StrCat("t", i), {static_cast<int64_t>(random.Below(400))});
      spec.dtype = random.Below(2) == 0 ? DataType::kFloat32 : DataType::kInt64;
      spec.op = random.Below(2) == 0 ? ReduceOp::kSum : ReduceOp::kMin;
      if (random.Below(5) == 0) spec.kind = CollectiveKind::kAllgather;
      specs.push_back(spec);
    }
    const int64_t bound = 64 * static_cast<int64_t>(1 + random.Below(40));
    auto size = [&](size_t i) { return (SizeBytes(specs[i]) + 63) / 64 * 64; };
    auto key = [&](size_t i) {
      return std::make_tuple(specs[i].kind, specs[i].dtype, specs[i].op);
    };
    std::set<size_t> seen;
    std::map<std::tuple<CollectiveKind, DataType, ReduceOp>, std::pair<size_t, int64_t>> last;
    for (const std::vector<size_t>& batch : Plan(specs, {.max_batch_bytes = bound})) {
      int64_t bytes = 0;
      for (size_t i : batch) {
        ASSERT_TRUE(seen.insert(i).second);
        ASSERT_EQ(key(i), key(batch.front()));
        bytes += size(i);
      }
      ASSERT_TRUE(bytes <= bound || batch.size() == 1);
      ASSERT_TRUE(std::is_sorted(batch.begin(), batch.end()));
      const auto previous = last.find(key(batch.front()));
      if (previous != last.end()) {
        ASSERT_LT(previous->second.first, batch.front());
        ASSERT_GT(previous->second.second + size(batch.front()), bound);
      }
      last[key(batch.front())] = {batch.back(), bytes};
    }
    ASSERT_EQ(seen.size(), specs.size());
  }
}

}  // namespace
}  // namespace coordd
