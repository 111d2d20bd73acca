#include "worker/node_arena.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "common/store_memory.h"
#include "worker/arena_allocator.h"

namespace coordd {
namespace {

constexpr int64_t kPage = ArenaAllocator::kGranularityBytes;

TEST(ArenaAllocator, BlocksNeverOverlapAndWhatIsFreedBecomesOneAgain) {
  constexpr int64_t kEnd = 1000 * kPage;
  ArenaAllocator allocator(8 * kPage, kEnd);
  std::mt19937 random(1);
  std::vector<ArenaAllocator::Block> blocks;
  for (int i = 0; i < 5000; ++i) {
    if (random() % 2 == 0 && !blocks.empty()) {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      const ArenaAllocator::Block freed = allocator.Free(blocks.back().offset_bytes);
      EXPECT_EQ(freed.size_bytes, blocks.back().size_bytes);
      blocks.pop_back();
      continue;
    }
    const int64_t size_bytes = static_cast<int64_t>(random()) % (100 * kPage);
    const auto block = allocator.Allocate(size_bytes);
    if (!block) continue;
    EXPECT_GE(block->size_bytes, size_bytes);
    EXPECT_GE(block->offset_bytes, 8 * kPage);
    EXPECT_LE(block->offset_bytes + block->size_bytes, kEnd);
    for (const ArenaAllocator::Block& other : blocks) {
      EXPECT_TRUE(block->offset_bytes + block->size_bytes <= other.offset_bytes ||
                  other.offset_bytes + other.size_bytes <= block->offset_bytes);
    }
    blocks.push_back(*block);
  }
  for (const ArenaAllocator::Block& block : blocks) allocator.Free(block.offset_bytes);
  const auto all = allocator.Allocate(992 * kPage);
  ASSERT_TRUE(all.has_value());
  EXPECT_EQ(all->offset_bytes, 8 * kPage);
  EXPECT_FALSE(allocator.Allocate(0).has_value());
}

TEST(NodeArena, IsAsLargeAsTheLimitsLetItBe) {
  constexpr int64_t kGiB = int64_t{1} << 30;
  EXPECT_EQ(NodeArena::SizeBytesFor(2, 64 * kGiB, -1, -1), 64 * kGiB);
  EXPECT_EQ(NodeArena::SizeBytesFor(2, 64 * kGiB, 5 * kGiB, -1), 5 * kGiB);
  EXPECT_EQ(NodeArena::SizeBytesFor(4, 64 * kGiB, -1, 16 * kGiB), 2 * kGiB);
  // 256 times 2 TiB would not fit an address space.
  EXPECT_EQ(NodeArena::SizeBytesFor(256, 2048 * kGiB, -1, -1), 256 * kGiB);
}

TEST(NodeArena, FreedMemoryComesBackAsZeros) {
  InMemoryStore store;
  NodeArena arena(NodeArenaOptions{NodeArena::kSizeBytesMin});
  ASSERT_EQ(arena.Connect(GroupLayout::OneNode(Rank{0}, 1), store, absl::InfiniteFuture()),
            absl::OkStatus());
  auto block = arena.Allocate(100000);
  ASSERT_TRUE(block.ok());
  EXPECT_EQ(block->size(), 100000u);
  std::memset(block->data(), 1, block->size());
  arena.Free(*block);
  const auto again = arena.Allocate(100000);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->data(), block->data());
  EXPECT_EQ((*again)[99999], std::byte{0});
  EXPECT_TRUE(absl::IsResourceExhausted(arena.Allocate(NodeArena::kSizeBytesMin).status()));
}

TEST(NodeArena, TooLittleIsAnError) {
  InMemoryStore store;
  NodeArena arena(NodeArenaOptions{NodeArena::kSizeBytesMin / 2});
  const absl::Status status =
      arena.Connect(GroupLayout::OneNode(Rank{0}, 1), store, absl::InfiniteFuture());
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
}

}  // namespace
}  // namespace coordd
