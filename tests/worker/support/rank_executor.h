// Executors of the ranks of a group, as threads over in-process memory.
#pragma once

#include <gtest/gtest.h>

#include <barrier>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/thread.h"
#include "common/protocol/store_memory.h"
#include "tests/support/status_matchers.h"
#include "tests/worker/support/in_process_transport.h"
#include "worker/execute/executor.h"
#include "worker/host/host_backend.h"

namespace coordd {

inline constexpr absl::Duration kExecutorHangLimit = absl::Seconds(60);

// One rank: an executor whose finished batches are taken by the test.
class RankExecutor {
 public:
  RankExecutor(int32_t rank, int32_t size, InProcessNetwork& network, Store& store,
               bool confirm = false, std::unique_ptr<NodeArena> arena = nullptr)
      : context_{Generation{1}, rank, size, {}, nullptr, /*keeps_inputs=*/confirm},
        executor_({.fusion_buffer_bytes = 1 << 16,
                   .polling_threads = size,
                   .cores = 2,
                   .confirm = confirm},
                  std::make_unique<HostBackend>(std::make_unique<InProcessTransport>(network),
                                                HostBackendOptions(), std::move(arena)),
                  Clock::Real(), [this](std::unique_ptr<BatchJob> batch) {
                    finished_.PushUnbounded(std::move(batch));
                  }) {
    status_ = executor_.Start(GroupLayout::OneNode(Rank{rank}, size), store,
                              Clock::Real().Now() + kExecutorHangLimit);
  }

  const absl::Status& status() const { return status_; }
  Executor& executor() { return executor_; }

  void Launch(int64_t sequence, std::vector<TensorJob> tensors) {
    executor_.Launch(std::make_unique<BatchJob>(context_, LaneId{0}, sequence, std::move(tensors)));
  }
  void LaunchJoin(int64_t sequence, std::vector<TensorJob> tensors, int32_t last_joined_rank) {
    auto batch = std::make_unique<BatchJob>(context_, LaneId{0}, sequence, std::move(tensors));
    batch->last_joined_rank = last_joined_rank;
    executor_.Launch(std::move(batch));
  }
  // A process set that this rank is in, on the lane of its number.
  void Define(int32_t set, std::vector<int32_t> ranks) {
    const auto list = std::make_shared<const std::vector<int32_t>>(std::move(ranks));
    BatchContext context = context_;
    context.process_set = ProcessSetId{set};
    context.ranks = list;
    context.size = static_cast<int32_t>(list->size());
    context.rank = context.IndexOf(context_.rank);
    sets_.emplace(set, context);
    executor_.DefineGroup(ProcessSetId{set}, list);
  }
  void LaunchIn(int32_t set, int64_t sequence, std::vector<TensorJob> tensors) {
    executor_.Launch(
        std::make_unique<BatchJob>(sets_.at(set), LaneId{set}, sequence, std::move(tensors)));
  }
  // The next batch that ends; unpacked if it went well.
  std::unique_ptr<BatchJob> Take() {
    while (taken_.empty())
      for (auto& batch : finished_.TakeAll(absl::InfiniteFuture()))
        taken_.push_back(std::move(batch));
    std::unique_ptr<BatchJob> batch = std::move(taken_.front());
    taken_.pop_front();
    if (batch->status.ok()) batch->Unpack();
    if (batch->scratch.has_value()) executor_.ReturnScratch(batch->data_lane(), *batch->scratch);
    return batch;
  }

 private:
  const BatchContext context_;
  std::map<int32_t, BatchContext> sets_;
  BoundedQueue<std::unique_ptr<BatchJob>> finished_{64, Clock::Real()};
  std::deque<std::unique_ptr<BatchJob>> taken_;
  Executor executor_;
  absl::Status status_;
};

inline void RunRanks(int32_t size, const std::function<void(RankExecutor&, int32_t)>& body,
                     bool confirm = false) {
  InProcessNetwork network(size);
  InMemoryStore store;
  std::barrier end(size);  // a rank that goes away is one that is lost
  std::vector<std::thread> threads;
  for (int32_t r = 0; r < size; ++r) {
    threads.push_back(StartThread(absl::StrCat("rank-", r), [&, r] {
      RankExecutor rank(r, size, network, store, confirm);
      EXPECT_THAT(rank.status(), IsOk());
      if (rank.status().ok()) body(rank, r);
      end.arrive_and_wait();
    }));
  }
  for (std::thread& thread : threads) thread.join();
}

inline TensorJob Job(TensorSpec spec, const std::vector<float>& input, std::vector<float>* output) {
  TensorJob job;
  job.work = std::make_shared<Work>(std::move(spec), Clock::Real());
  job.input = reinterpret_cast<const std::byte*>(input.data());
  if (output != nullptr) {
    job.output = reinterpret_cast<std::byte*>(output->data());
    job.output_capacity_bytes = static_cast<int64_t>(output->size() * sizeof(float));
  }
  return job;
}

inline TensorSpec Spec(CollectiveKind kind, const std::string& name, std::vector<int64_t> shape) {
  TensorSpec spec;
  spec.name = name;
  spec.kind = kind;
  spec.op = Reduces(kind) ? ReduceOp::kSum : ReduceOp::kNone;
  spec.shape = std::move(shape);
  return spec;
}

}  // namespace coordd
