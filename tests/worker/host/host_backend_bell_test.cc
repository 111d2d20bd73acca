// Where the owner of a HostBackend may sleep while its collectives run.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "common/base/thread.h"
#include "common/protocol/store_memory.h"
#include "tests/worker/support/in_process_transport.h"
#include "tests/worker/support/mapped_memories.h"
#include "worker/host/host_backend.h"

namespace coordd {
namespace {

enum class Arenas { kNone, kAll };

// Ranks that the test drives one after the other.
class BackendsOfANode {
 public:
  BackendsOfANode(Arenas arenas, const std::vector<NodeRun>& nodes, int32_t ranks)
      : memories_(ranks), network_(ranks) {
    for (int32_t r = 0; r < ranks; ++r) {
      std::unique_ptr<NodeArena> arena;
      if (arenas == Arenas::kAll) arena = std::make_unique<NodeArena>(memories_.all());
      backends_.push_back(std::make_unique<HostBackend>(
          std::make_unique<InProcessTransport>(network_),
          HostBackendOptions{.algorithm = HostAlgorithm::kHierarchical}, std::move(arena)));
    }
    std::vector<std::thread> threads;
    for (int32_t r = 0; r < ranks; ++r) {
      threads.push_back(StartThread("connects", [&, r] {
        const absl::Status connected = backends_[static_cast<size_t>(r)]->Connect(
            GroupLayout(Rank{r}, nodes), store_, Clock::Real().Now() + absl::Minutes(1));
        EXPECT_TRUE(connected.ok()) << connected;
      }));
    }
    for (std::thread& thread : threads) thread.join();
  }

  HostBackend& backend(int32_t rank) { return *backends_[static_cast<size_t>(rank)]; }
  Doorbell& bell(int32_t rank) const { return memories_.board(rank).bell(); }
  void LaunchBarrier(int32_t rank) {
    CollectiveArgs args;
    args.kind = CollectiveKind::kBarrier;
    EXPECT_TRUE(backend(rank).Launch(std::move(args), [this](absl::Status) { ++ended_; }).ok());
  }
  void LaunchAllreduce(int32_t rank, std::vector<float>& values) {
    CollectiveArgs args;
    args.kind = CollectiveKind::kAllreduce;
    args.dtype = DataType::kFloat32;
    args.op = ReduceOp::kSum;
    const size_t bytes = values.size() * sizeof(float);
    args.input = {reinterpret_cast<const std::byte*>(values.data()), bytes};
    args.output = {reinterpret_cast<std::byte*>(values.data()), bytes};
    EXPECT_TRUE(backend(rank).Launch(std::move(args), [this](absl::Status) { ++ended_; }).ok());
  }
  void ProgressUntilQuiet(int32_t rank) {
    while (backend(rank).Progress()) {
    }
  }
  int ended() const { return ended_; }

 private:
  const MappedMemories memories_;
  InProcessNetwork network_;
  InMemoryStore store_;
  int ended_ = 0;
  std::vector<std::unique_ptr<HostBackend>> backends_;
};

TEST(HostBackendBell, OnMappedMemoryItIsEnoughWhileSomethingRuns) {
  BackendsOfANode node(Arenas::kAll, {{1, 2}}, 2);
  EXPECT_EQ(node.backend(0).Bell().bell, nullptr);
  node.LaunchBarrier(0);
  node.ProgressUntilQuiet(0);
  const BellUse use = node.backend(0).Bell();
  EXPECT_EQ(use.bell, &node.bell(0));
  EXPECT_TRUE(use.suffices);
  node.LaunchBarrier(1);
  for (const int32_t rank : {1, 0, 1}) node.ProgressUntilQuiet(rank);
  EXPECT_EQ(node.ended(), 2);
  EXPECT_EQ(node.backend(0).Bell().bell, nullptr);
}

TEST(HostBackendBell, TheNeighboursProgressRings) {
  BackendsOfANode node(Arenas::kAll, {{1, 2}}, 2);
  node.LaunchBarrier(0);
  node.ProgressUntilQuiet(0);
  node.backend(0).Bell().bell->Listen();
  node.LaunchBarrier(1);
  node.ProgressUntilQuiet(1);
  EXPECT_EQ(node.bell(0).rung, 1u);
}

TEST(HostBackendBell, MessagesHaveNone) {
  BackendsOfANode node(Arenas::kNone, {{1, 2}}, 2);
  node.LaunchBarrier(0);
  node.ProgressUntilQuiet(0);
  EXPECT_EQ(node.backend(0).Bell().bell, nullptr);
}

TEST(HostBackendBell, BetweenNodesItDoesNotSuffice) {
  BackendsOfANode nodes(Arenas::kAll, {{2, 2}}, 4);
  std::vector<float> values(100'000, 1.f);
  nodes.LaunchAllreduce(0, values);
  nodes.ProgressUntilQuiet(0);
  const BellUse use = nodes.backend(0).Bell();
  EXPECT_EQ(use.bell, &nodes.bell(0));
  EXPECT_FALSE(use.suffices);
}

TEST(HostBackendBell, AFailureIsPolledFor) {
  BackendsOfANode node(Arenas::kAll, {{1, 2}}, 2);
  node.LaunchBarrier(0);
  node.backend(0).Abort();
  node.ProgressUntilQuiet(0);
  EXPECT_FALSE(node.backend(0).Bell().suffices);
}

}  // namespace
}  // namespace coordd
