// Runs the ranks of a group as threads of the test, each with its own connected object.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/thread.h"
#include "common/protocol/store_memory.h"
#include "worker/interfaces/collective_backend.h"
#include "worker/interfaces/group_layout.h"
#include "worker/interfaces/idle_wait.h"

namespace coordd {

// How a kind of Transport or CollectiveBackend is made for the tests.
template <typename T>
struct GroupCase {
  using Maker = std::function<std::unique_ptr<T>()>;

  std::string name;
  // Called once per group; the maker then once per rank, on the rank's thread.
  std::function<Maker(int32_t world_size)> new_group;
  std::function<GroupLayout(Rank self, int32_t world_size)> layout = GroupLayout::OneNode;
  int32_t max_world_size = 8;
  // NCCL: lanes share one order, which all ranks keep; and who is gone is not told.
  bool lanes_are_independent = true;
  bool blames_lost_peers = true;
  bool large_of_every_type = true;  // else large buffers are reduced as float32 alone

  friend void PrintTo(const GroupCase& c, std::ostream* out) { *out << c.name; }
};

// Against hangs only: a test that needs it has failed.
inline constexpr absl::Duration kGroupHangLimit = absl::Minutes(5);

// What the body of a rank works with.
template <typename T>
struct RankContext {
  T& object;
  Rank rank;
  int32_t world_size;
  std::barrier<>& barrier;        // of all ranks
  std::function<void()> destroy;  // ends `object` early, as a process that goes away

  // Progresses until `condition` holds; fails the test when that takes too long.
  bool DriveUntil(const std::function<bool()>& condition) {
    IdleWait idle(world_size, static_cast<int32_t>(std::thread::hardware_concurrency()));
    const absl::Time limit = Clock::Real().Now() + kGroupHangLimit;
    while (!condition()) {
      if (object.Progress()) {
        idle.Reset();
        continue;
      }
      idle.Wait();
      if (Clock::Real().Now() > limit) {
        ADD_FAILURE() << "rank " << ToInt(rank) << " of " << world_size << " hangs";
        return false;
      }
    }
    return true;
  }
};

// Connects `world_size` ranks and runs `body` on each; returns when all are through. Objects end
// together, after every body has returned, unless a body ends its own.
template <typename T>
void RunRanks(const GroupCase<T>& group_case, int32_t world_size,
              const std::function<void(RankContext<T>&)>& body) {
  InMemoryStore store;
  const typename GroupCase<T>::Maker make = group_case.new_group(world_size);
  std::barrier barrier(world_size);
  std::vector<std::thread> threads;
  for (int32_t r = 0; r < world_size; ++r) {
    threads.push_back(StartThread(absl::StrCat("rank-", r), [&, r] {
      std::unique_ptr<T> object = make();
      const absl::Status connected = object->Connect(group_case.layout(Rank{r}, world_size), store,
                                                     Clock::Real().Now() + kGroupHangLimit);
      EXPECT_TRUE(connected.ok()) << connected;
      if (!connected.ok()) {
        barrier.arrive_and_drop();
        return;
      }
      // The executor's promise to a backend: who launches knows that all are connected.
      if constexpr (std::is_same_v<T, CollectiveBackend>) barrier.arrive_and_wait();
      RankContext<T> context{*object, Rank{r}, world_size, barrier, [&] { object.reset(); }};
      body(context);
      barrier.arrive_and_wait();
    }));
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace coordd
