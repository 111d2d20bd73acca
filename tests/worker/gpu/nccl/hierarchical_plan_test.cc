// How a buffer is cut, and what follows what.
#include "worker/gpu/nccl/hierarchical_plan.h"

#include <gmock/gmock.h>

#include <map>
#include <vector>

namespace coordd {
namespace {

using Kind = HierarchyCall::Kind;

TEST(HierarchicalPlan, SlicesOfAllRanksCoverTheBufferOnce) {
  for (int64_t element : {1, 2, 4, 8}) {
    for (int32_t ranks : {2, 3, 8}) {
      for (int64_t count : {0, 1, 2, 7, 1000, 4097, 100'000, 1'000'003}) {
        const HierarchyShape shape{count * element, element, ranks, /*chunk_bytes=*/4096};
        int64_t end = 0;
        const std::vector<HierarchyChunk> chunks = HierarchyChunks(shape);
        EXPECT_LE(static_cast<int64_t>(chunks.size()), kHierarchyChunksMax);
        for (const HierarchyChunk& chunk : chunks) {
          for (int32_t local = 0; local < ranks; ++local) {
            const HierarchySlice slice = SliceOf(chunk, local, ranks);
            EXPECT_EQ(slice.offset_bytes, end);
            EXPECT_EQ(slice.bytes % element, 0);
            end += slice.bytes;
          }
        }
        EXPECT_EQ(end, shape.bytes) << count << " elements of " << element << ", " << ranks;
      }
    }
  }
}

TEST(HierarchicalPlan, OnlyTheLastSliceOfTheLastChunkIsLarger) {
  const std::vector<HierarchyChunk> chunks = HierarchyChunks(
      {.bytes = 4 * 1001, .element_bytes = 4, .ranks_per_node = 2, .chunk_bytes = 512});
  ASSERT_EQ(chunks.size(), 8u);
  EXPECT_EQ(chunks.front(), (HierarchyChunk{0, 256, 0}));
  EXPECT_EQ(chunks.back(), (HierarchyChunk{3584, 208, 4}));
}

TEST(HierarchicalPlan, FewerElementsThanRanksAreTheLastRanks) {
  EXPECT_THAT(HierarchyChunks({.bytes = 8, .element_bytes = 4, .ranks_per_node = 3}),
              testing::ElementsAre(HierarchyChunk{0, 0, 8}));
}

TEST(HierarchicalPlan, TheNextChunkIsOnItsWayWhileOneIsExchanged) {
  EXPECT_THAT(HierarchySteps(0), testing::IsEmpty());
  EXPECT_THAT(
      HierarchySteps(1),
      testing::ElementsAre(HierarchyCall{Kind::kReduceScatter, 0}, HierarchyCall{Kind::kToHost, 0},
                           HierarchyCall{Kind::kFromHost, 0}, HierarchyCall{Kind::kAllgather, 0}));
  EXPECT_THAT(
      HierarchySteps(2),
      testing::ElementsAre(HierarchyCall{Kind::kReduceScatter, 0}, HierarchyCall{Kind::kToHost, 0},
                           HierarchyCall{Kind::kReduceScatter, 1}, HierarchyCall{Kind::kToHost, 1},
                           HierarchyCall{Kind::kFromHost, 0}, HierarchyCall{Kind::kAllgather, 0},
                           HierarchyCall{Kind::kFromHost, 1}, HierarchyCall{Kind::kAllgather, 1}));
}

TEST(HierarchicalPlan, ASlotIsReadBeforeItIsWrittenAgain) {
  std::map<size_t, bool> full;
  for (const HierarchyCall& step : HierarchySteps(kHierarchyChunksMax)) {
    bool& slot = full[step.chunk % kHierarchySlots];
    if (step.kind == Kind::kToHost) {
      EXPECT_FALSE(slot) << step.chunk;
      slot = true;
    }
    if (step.kind == Kind::kFromHost) {
      EXPECT_TRUE(slot) << step.chunk;
      slot = false;
    }
  }
}

}  // namespace
}  // namespace coordd
