// Ranks of several nodes in one thread, for tests of what runs between nodes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/thread.h"
#include "common/protocol/store_memory.h"
#include "tests/worker/support/in_process_transport.h"
#include "tests/worker/support/mapped_memories.h"
#include "worker/algorithms/dimension_schedule.h"
#include "worker/interfaces/group_layout.h"
#include "worker/node/node_lane.h"

namespace coordd {

// Their memory, each beginning with a board and room for staging and three buffers, and their
// transports.
struct Cluster {
  static constexpr int64_t kBoardRoom = int64_t{67} << 20;
  static constexpr int64_t kBufferRoom = int64_t{1} << 19;

  Cluster(int32_t node_count, int32_t members)
      : Cluster(std::vector<int32_t>(static_cast<size_t>(node_count), members)) {}
  explicit Cluster(std::vector<int32_t> members_of_nodes)
      : members(std::move(members_of_nodes)),
        nodes(static_cast<int32_t>(members.size())),
        carriers(*std::min_element(members.begin(), members.end())),
        size(std::accumulate(members.begin(), members.end(), 0)),
        memories(size) {
    network = std::make_unique<InProcessNetwork>(size);
    for (int32_t r = 0; r < size; ++r) {
      transports.push_back(std::make_unique<InProcessTransport>(*network));
    }
    std::vector<std::thread> threads;
    for (int32_t r = 0; r < size; ++r) {
      threads.push_back(StartThread("connect", [this, r] {
        std::vector<NodeRun> runs;
        for (const int32_t on_node : members) runs.push_back({1, on_node});
        EXPECT_EQ(transports[static_cast<size_t>(r)]->Connect(
                      GroupLayout(Rank{r}, runs), store, Clock::Real().Now() + absl::Minutes(1)),
                  absl::OkStatus());
      }));
    }
    for (std::thread& thread : threads) thread.join();
  }
  int32_t FirstOf(int32_t node) const {
    return std::accumulate(members.begin(), members.begin() + node, 0);
  }
  int32_t NodeOf(int32_t rank) const {
    int32_t node = 0;
    while (FirstOf(node + 1) <= rank) ++node;
    return node;
  }
  int32_t NumberOf(int32_t rank) const { return rank - FirstOf(NodeOf(rank)); }
  std::vector<NodeMemory> MemoriesOf(int32_t node) const {
    const auto first = memories.all().begin() + FirstOf(node);
    return {first, first + members[static_cast<size_t>(node)]};
  }

  const std::vector<int32_t> members;  // by node
  const int32_t nodes, carriers, size;
  const MappedMemories memories;
  GridOfRanks grid;  // of the nodes
  InMemoryStore store;
  std::unique_ptr<InProcessNetwork> network;
  std::vector<std::unique_ptr<InProcessTransport>> transports;
};

// Those that are left when one has gone: each has ended well or knows of it, and ends once it is
// told.
template <typename Ranks, typename Jobs>
void ExpectAllEnd(const Ranks& ranks, const Jobs& jobs, uint32_t seed) {
  for (const auto& rank : ranks) {
    EXPECT_TRUE(rank->status().ok() || absl::IsUnavailable(rank->status())) << rank->status();
    rank->Abort();
    for (int turn = 0; turn < 1000 && rank->is_running(); ++turn) rank->Advance(jobs);
    EXPECT_FALSE(rank->is_running()) << "hangs with seed " << seed;
  }
}

}  // namespace coordd
