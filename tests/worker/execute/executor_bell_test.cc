// An executor sleeps at its rank's bell, and what is put there for it rings.
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "common/base/thread.h"
#include "common/protocol/store_memory.h"
#include "tests/support/status_matchers.h"
#include "tests/worker/support/mapped_memories.h"
#include "tests/worker/support/rank_executor.h"

namespace coordd {
namespace {

// Two ranks on mapped memory, each a thread.
void RunOnMappedMemory(
    const std::function<void(RankExecutor&, int32_t, const MappedMemories&)>& body) {
  constexpr int32_t kRanks = 2;
  const MappedMemories memories(kRanks);
  InProcessNetwork network(kRanks);
  InMemoryStore store;
  std::barrier all(kRanks);
  std::vector<std::thread> threads;
  for (int32_t r = 0; r < kRanks; ++r) {
    threads.push_back(StartThread("rank", [&, r] {
      RankExecutor rank(r, kRanks, network, store, /*confirm=*/false,
                        std::make_unique<NodeArena>(memories.all()));
      ASSERT_THAT(rank.status(), IsOk());
      all.arrive_and_wait();
      body(rank, r, memories);
      all.arrive_and_wait();
    }));
  }
  for (std::thread& thread : threads) thread.join();
}

void LaunchSum(RankExecutor& rank, const std::vector<float>& input, std::vector<float>& output) {
  std::vector<TensorJob> jobs;
  jobs.push_back(Job(Spec(CollectiveKind::kAllreduce, "a", {4}), input, &output));
  rank.Launch(0, std::move(jobs));
}

TEST(ExecutorBell, SleepsAtItWhileANeighbourIsLate) {
  std::atomic<bool> sleeps = false;
  RunOnMappedMemory([&](RankExecutor& rank, int32_t r, const MappedMemories& memories) {
    const std::vector<float> input = {1, 2, 3, 4};
    std::vector<float> output(4);
    const Doorbell& bell = memories.board(0).bell();
    if (r == 0) {
      LaunchSum(rank, input, output);
      while (bell.listens == 0) std::this_thread::yield();
      sleeps = true;
    } else {
      while (!sleeps) std::this_thread::yield();
      LaunchSum(rank, input, output);
    }
    EXPECT_THAT(rank.Take()->status, IsOk());
    EXPECT_EQ(output, (std::vector<float>{2, 4, 6, 8}));
    // Who leaves the seat has left the bell.
    if (r != 0) return;
    while (rank.executor().seat()->taken()) std::this_thread::yield();
    EXPECT_EQ(bell.listens, 0u);
  });
}

TEST(ExecutorBell, WhatIsPutThereForTheDriverRings) {
  RunOnMappedMemory([](RankExecutor& rank, int32_t r, const MappedMemories& memories) {
    // As if a driver slept: while nothing is in flight nobody else listens here.
    Doorbell& bell = memories.board(r).bell();
    bell.Listen();
    rank.Define(1, {r});
    EXPECT_EQ(bell.rung, 1u);
    bell.Listen();
    EXPECT_EQ(bell.rung, 0u);
    rank.executor().Abort();
    EXPECT_EQ(bell.rung, 1u);
    bell.StopListening();
  });
}

TEST(ExecutorBell, CommsThatSleepAreRungWhenTheirGenerationEnds) {
  RunOnMappedMemory([](RankExecutor& rank, int32_t, const MappedMemories&) {
    const auto lane = rank.executor().OpenComm(LaneId{5000}, {Rank{0}, Rank{1}});
    ASSERT_THAT(lane.status(), IsOk());
    ASSERT_NE(*lane, nullptr);
    Doorbell& bell = (*lane)->node->bell();
    bell.Listen();
    rank.executor().RingComms();
    EXPECT_EQ(bell.rung, 1u);
    bell.StopListening();
    rank.executor().CloseComm(LaneId{5000}, *lane);
  });
}

}  // namespace
}  // namespace coordd
