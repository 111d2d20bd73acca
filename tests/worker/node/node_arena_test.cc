#include "worker/node/node_arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "common/base/thread.h"
#include "common/protocol/store_memory.h"
#include "worker/base/arena_allocator.h"

namespace coordd {
namespace {

constexpr int64_t kPage = ArenaAllocator::kGranularityBytes;

TEST(ArenaAllocator, BlocksNeverOverlapAndWhatIsFreedBecomesOneAgain) {
  constexpr int64_t kEnd = 1000 * kPage;
  ArenaAllocator allocator(8 * kPage, kEnd);
  std::mt19937 random(1);
  std::vector<ArenaAllocator::Allocation> blocks;
  for (int i = 0; i < 5000; ++i) {
    if (random() % 2 == 0 && !blocks.empty()) {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      const ArenaAllocator::Allocation freed = allocator.Free(blocks.back().offset_bytes);
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
    for (const ArenaAllocator::Allocation& other : blocks) {
      EXPECT_TRUE(block->offset_bytes + block->size_bytes <= other.offset_bytes ||
                  other.offset_bytes + other.size_bytes <= block->offset_bytes);
    }
    blocks.push_back(*block);
  }
  for (const ArenaAllocator::Allocation& block : blocks) allocator.Free(block.offset_bytes);
  const auto all = allocator.Allocate(992 * kPage);
  ASSERT_TRUE(all.has_value());
  EXPECT_EQ(all->offset_bytes, 8 * kPage);
  EXPECT_FALSE(allocator.Allocate(0).has_value());
}

TEST(NodeArena, IsAsLargeAsTheLimitsLetItBe) {
  constexpr int64_t kGiB = int64_t{1} << 30;
  constexpr int64_t kBeside = NodeArena::kSizeBytesMinOptional;
  EXPECT_EQ(NodeArena::SizeBytesFor(2, 64 * kGiB, -1, -1), 64 * kGiB + kBeside);
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

// Ranks of a node, each with its own options; returns how each Connect ended, and how many memories
// each has then.
struct Connected {
  std::vector<absl::Status> statuses;
  std::vector<size_t> memories;
};
Connected ConnectAll(const std::vector<NodeArenaOptions>& options) {
  const int32_t size = static_cast<int32_t>(options.size());
  InMemoryStore store;
  Connected connected{std::vector<absl::Status>(options.size()),
                      std::vector<size_t>(options.size())};
  std::vector<std::unique_ptr<NodeArena>> arenas;
  for (const NodeArenaOptions& option : options)
    arenas.push_back(std::make_unique<NodeArena>(option));
  std::vector<std::thread> threads;
  for (int32_t r = 0; r < size; ++r) {
    threads.push_back(StartThread("rank", [&, r] {
      const size_t index = static_cast<size_t>(r);
      connected.statuses[index] = arenas[index]->Connect(GroupLayout::OneNode(Rank{r}, size), store,
                                                         Clock::Real().Now() + absl::Minutes(5));
      connected.memories[index] = arenas[index]->memories().size();
    }));
  }
  for (std::thread& thread : threads) thread.join();
  return connected;
}

TEST(NodeArena, WhatIsAllocatedLeavesRoomForStaging) {
  InMemoryStore store;
  NodeArena arena(NodeArenaOptions{NodeArena::kSizeBytesMin});
  ASSERT_TRUE(arena.Connect(GroupLayout::OneNode(Rank{0}, 1), store, absl::InfiniteFuture()).ok());
  std::vector<absl::Span<std::byte>> blocks;
  for (auto block = arena.Allocate(kPage); block.ok(); block = arena.Allocate(kPage))
    blocks.push_back(*block);
  auto staging = arena.AllocateStaging(int64_t{1} << 20);
  ASSERT_TRUE(staging.ok());
  arena.Free(*staging);
  EXPECT_FALSE(arena.Allocate(kPage).ok());
  for (absl::Span<std::byte> block : blocks) arena.Free(block);
  EXPECT_TRUE(arena.Allocate(int64_t{1} << 20).ok());
}

constexpr NodeArenaOptions kEnough = {NodeArena::kSizeBytesMinOptional, /*required=*/false};
constexpr NodeArenaOptions kTooLittle = {NodeArena::kSizeBytesMinOptional / 2, /*required=*/false};

TEST(NodeArena, AllRanksOfANodeHaveMemoriesOrNoneHas) {
  for (const size_t without : {0, 1, 2}) {
    std::vector<NodeArenaOptions> options(3, kEnough);
    options[without] = kTooLittle;
    const Connected connected = ConnectAll(options);
    for (const absl::Status& status : connected.statuses) EXPECT_EQ(status, absl::OkStatus());
    EXPECT_EQ(connected.memories, std::vector<size_t>(3, 0));
  }
  EXPECT_EQ(ConnectAll({kEnough, kEnough}).memories, std::vector<size_t>(2, 2));
}

TEST(NodeArena, WhoCannotDoWithoutIsToldWhoHasNone) {
  const Connected connected =
      ConnectAll({{NodeArena::kSizeBytesMin}, kEnough, kTooLittle, kTooLittle});
  EXPECT_TRUE(absl::IsResourceExhausted(connected.statuses[0])) << connected.statuses[0];
  EXPECT_THAT(std::string(connected.statuses[0].message()), testing::StartsWith("rank 2: "));
  EXPECT_EQ(connected.statuses[1], absl::OkStatus());
}

TEST(NodeArena, AbortEndsAConnectThatWaits) {
  InMemoryStore store;
  NodeArena arena(kTooLittle);
  arena.Abort();
  EXPECT_TRUE(absl::IsAborted(
      arena.Connect(GroupLayout::OneNode(Rank{0}, 2), store, absl::InfiniteFuture())));
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
