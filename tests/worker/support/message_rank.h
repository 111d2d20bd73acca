// Ranks as threads that send each other messages of comms, without coordd.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <cstdint>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "common/protocol/store_memory.h"
#include "tests/support/status_matchers.h"
#include "tests/worker/support/in_process_transport.h"
#include "tests/worker/support/mapped_memories.h"
#include "worker/host/host_backend.h"
#include "worker/runtime/point_to_point.h"

namespace coordd {

inline constexpr LaneId kComm{7};
inline constexpr absl::Duration kHang = absl::Minutes(1);

enum class Place { kOneNode, kOneNodeEach, kTwoOnEach };

inline std::vector<NodeRun> NodesOf(Place place, int32_t size) {
  if (place == Place::kOneNode) return {{1, size}};
  return place == Place::kOneNodeEach ? std::vector<NodeRun>{{size, 1}}
                                      : std::vector<NodeRun>{{size / 2, 2}};
}

// What ranks share.
struct Machines {
  Machines(Place in, int32_t ranks)
      : place(in), size(ranks), network(ranks), memories(ranks), all(ranks) {}

  const Place place;
  const int32_t size;
  InProcessNetwork network;
  MappedMemories memories;
  InMemoryStore store;
  std::barrier<> all;
};

// A rank as a worker makes it, without coordd.
class MessageRank {
 public:
  MessageRank(Machines& machines, int32_t rank)
      : members_(std::make_shared<std::vector<int32_t>>(Everybody(machines.size))), rank_(rank) {
    executor_ = std::make_unique<Executor>(
        ExecutorOptions{
            .fusion_buffer_bytes = 1 << 16, .polling_threads = machines.size, .cores = 2},
        std::make_unique<HostBackend>(std::make_unique<InProcessTransport>(machines.network),
                                      HostBackendOptions(), ArenaOf(machines)),
        Clock::Real(), [](std::unique_ptr<BatchJob>) {});
    PointToPoint::Needs needs;
    needs.generation = Generation{1};
    needs.self = rank;
    needs.size = machines.size;
    needs.executor = executor_.get();
    needs.clock = &Clock::Real();
    needs.count = [this](CollectiveKind kind, absl::StatusCode code, int64_t bytes) {
      if (kind == CollectiveKind::kSend && code == absl::StatusCode::kOk) bytes_sent += bytes;
    };
    needs.report_failure = [this](const absl::Status& why) {
      MutexLock lock(&mu_);
      failure_ = why;
      failed_ = true;
      changed_.NotifyAll();
    };
    messages_ = std::make_unique<PointToPoint>(std::move(needs));
    const GroupLayout layout(Rank{rank}, NodesOf(machines.place, machines.size));
    EXPECT_THAT(executor_->Start(layout, machines.store, Clock::Real().Now() + kHang), IsOk());
  }
  ~MessageRank() {
    End(absl::CancelledError("the test is over"));
    Stop();
  }

  int32_t rank() const { return rank_; }
  PointToPoint& messages() { return *messages_; }
  void End(const absl::Status& why) { messages_->End(why); }
  void Stop() { executor_->Stop(); }  // for the others it is gone, unless it has said so before

  absl::StatusOr<std::shared_ptr<Work>> Send(std::vector<int32_t>& values, int32_t to,
                                             int64_t tag = 0, LaneId comm = kComm) {
    return messages_->Send(MessageOf(values, to, tag, comm));
  }
  absl::StatusOr<std::shared_ptr<Work>> Receive(std::vector<int32_t>& values, int32_t from,
                                                int64_t tag = 0, LaneId comm = kComm) {
    return messages_->Receive(MessageOf(values, from, tag, comm));
  }
  absl::Status SendAndWait(std::vector<int32_t> values, int32_t to, int64_t tag = 0) {
    return Await(Send(values, to, tag));
  }
  // The next message's values, of which there are so many.
  std::vector<int32_t> Take(size_t count, int32_t from, int64_t tag = 0, LaneId comm = kComm) {
    std::vector<int32_t> values(count, -1);
    EXPECT_THAT(Await(Receive(values, from, tag, comm)), IsOk());
    return values;
  }
  static absl::Status Await(const absl::StatusOr<std::shared_ptr<Work>>& work) {
    if (!work.ok()) return work.status();
    return (*work)->Wait(Clock::Real().Now() + kHang);
  }
  absl::Status AwaitFailure() {
    MutexLock lock(&mu_);
    while (!failed_) changed_.Wait(&mu_);
    return failure_;
  }

  bool FailsWithin(absl::Duration patience) {
    MutexLock lock(&mu_);
    Clock::Real().Await(
        &mu_, &changed_, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return failed_; },
        Clock::Real().Now() + patience);
    return failed_;
  }

  std::atomic<int64_t> bytes_sent = 0;

 private:
  static std::vector<int32_t> Everybody(int32_t size) {
    std::vector<int32_t> ranks(static_cast<size_t>(size));
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }
  static std::unique_ptr<NodeArena> ArenaOf(Machines& machines) {
    if (machines.place == Place::kOneNodeEach) return nullptr;
    return std::make_unique<NodeArena>(machines.memories.all());
  }
  PointToPoint::Message MessageOf(std::vector<int32_t>& values, int32_t peer, int64_t tag,
                                  LaneId comm) {
    PointToPoint::Message message;
    message.comm = comm;
    message.name = std::make_shared<const std::string>("torch");
    message.tag = tag;
    message.peer = peer;
    message.members = members_;
    message.buffer = reinterpret_cast<std::byte*>(values.data());
    message.count = static_cast<int64_t>(values.size());
    message.dtype = DataType::kInt32;
    return message;
  }

  // Constant after construction.
  const std::shared_ptr<const std::vector<int32_t>> members_;
  const int32_t rank_;

  // Guarded by mu_.
  Mutex mu_;
  CondVar changed_;
  bool failed_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mu_);

  // Thread-safe by themselves, in the order in which they end.
  std::unique_ptr<PointToPoint> messages_;
  std::unique_ptr<Executor> executor_;
};

}  // namespace coordd
