// What a small collective costs below the agreement on it: two ranks, each with an executor over
// shared memory, that launch the same batches of one 4-byte allreduce in the same order and wait
// for each. Once the executor's thread does it, once the waiting thread itself, in the driver's
// seat; both take turns, so that what else the machine does meets both alike.
//
//     executor_latency [--json] [rounds]
//
// Ranks are threads of one process: each pair of them shares memory as two processes would. And
// what it costs to record such a batch for a timeline (worker/execute/trace_recorder.h), in
// processor time.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/thread.h"
#include "common/protocol/store_memory.h"
#include "worker/execute/executor.h"
#include "worker/execute/trace_recorder.h"
#include "worker/host/host_backend.h"
#include "worker/transport/shm/shm_transport.h"

namespace coordd {
namespace {

constexpr int kRanks = 2;
constexpr int kRoundsPerTurn = 100;
constexpr int kWarmUpTurns = 4;
constexpr absl::Duration kConnectTimeout = absl::Seconds(60);

enum Mode { kThread, kSeat, kModes };
using Samples = std::array<std::vector<double>, kModes>;  // microseconds

class Rank0Or1 {
 public:
  Rank0Or1(int32_t rank, Store& store)
      : context_{Generation{1}, rank, kRanks, {}, nullptr},
        executor_({.polling_threads = kRanks,
                   .cores = static_cast<int32_t>(std::thread::hardware_concurrency())},
                  std::make_unique<HostBackend>(std::make_unique<ShmTransport>()), Clock::Real(),
                  [](std::unique_ptr<BatchJob> batch) { Complete(*batch); }) {
    COORDD_CHECK(executor_
                     .Start(GroupLayout::OneNode(Rank{rank}, kRanks), store,
                            Clock::Real().Now() + kConnectTimeout)
                     .ok());
  }

  // Microseconds.
  double Allreduce(Mode mode) {
    const auto start = std::chrono::steady_clock::now();
    TensorSpec spec;
    spec.name = "value";
    spec.op = ReduceOp::kSum;
    TensorJob job;
    job.work = std::make_shared<Work>(std::move(spec), Clock::Real(),
                                      mode == kSeat ? executor_.seat() : nullptr);
    job.input = reinterpret_cast<const std::byte*>(&value_);
    job.output = reinterpret_cast<std::byte*>(&value_);
    const std::shared_ptr<Work> work = job.work;
    value_ = 1;
    {
      std::optional<Work::Waiter> waiter;
      if (mode == kSeat) waiter.emplace(*work);
      std::vector<TensorJob> jobs;
      jobs.push_back(std::move(job));
      executor_.Launch(
          std::make_unique<BatchJob>(context_, LaneId{0}, ++sequence_, std::move(jobs)));
      COORDD_CHECK(work->Wait(absl::InfiniteFuture()).ok());
    }
    const std::chrono::duration<double, std::micro> taken =
        std::chrono::steady_clock::now() - start;
    COORDD_CHECK(value_ == kRanks);
    return taken.count();
  }

 private:
  static void Complete(BatchJob& batch) {
    COORDD_CHECK(batch.status.ok());
    batch.Unpack();
    TensorJob& tensor = batch.tensors().front();
    tensor.work->Complete(absl::OkStatus(), std::move(tensor.result));
  }

  const BatchContext context_;
  float value_ = 0;
  int64_t sequence_ = 0;
  Executor executor_;
};

Samples Measure(int32_t rank, Store& store, int rounds) {
  Rank0Or1 self(rank, store);
  Samples samples;
  for (int turn = 0; turn < kWarmUpTurns + 2 * rounds / kRoundsPerTurn; ++turn) {
    const Mode mode = turn % 2 == 0 ? kThread : kSeat;
    for (int i = 0; i < kRoundsPerTurn; ++i) {
      const double taken_us = self.Allreduce(mode);
      if (turn >= kWarmUpTurns) samples[mode].push_back(taken_us);
    }
  }
  self.Allreduce(kThread);  // nobody leaves while the other one is at work
  return samples;
}

double At(std::vector<double>& values, double part) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(part * static_cast<double>(values.size() - 1))];
}

double ThreadSeconds() {
  timespec used = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

// Of five times a million, the least: what else the machine does comes on top.
double RecordingNs() {
  constexpr int kBatches = 1'000'000;
  TensorSpec spec;
  spec.name = "DistributedOptimizer.layer3.0.conv1.weight";
  spec.op = ReduceOp::kSum;
  spec.shape = {1};
  std::vector<TensorJob> jobs(1);
  jobs[0].work = std::make_shared<Work>(spec, Clock::Real());
  const BatchJob batch({}, LaneId{0}, 1, std::move(jobs));
  TraceRecorder recorder;
  double least = 1e9;
  for (int repetition = 0; repetition < 5; ++repetition) {
    recorder.Begin(TraceRecorder::For::kCoordd, TraceRecorder::kRecordsMax);
    const double start = ThreadSeconds();
    for (int i = 0; i < kBatches; ++i) recorder.Add(batch, batch.times.ended);
    least = std::min(least, ThreadSeconds() - start);
    recorder.End(TraceRecorder::For::kCoordd);
  }
  return 1e9 * least / kBatches;
}

void Run(bool json, int rounds) {
  InMemoryStore store;
  std::array<Samples, kRanks> samples;
  std::vector<std::thread> ranks;
  for (int32_t r = 0; r < kRanks; ++r) {
    ranks.push_back(StartThread("rank-" + std::to_string(r), [&samples, &store, rounds, r] {
      samples[static_cast<size_t>(r)] = Measure(r, store, rounds);
    }));
  }
  for (std::thread& rank : ranks) rank.join();
  const double recording_ns = RecordingNs();
  const double thread_us = At(samples[0][kThread], 0.5), seat_us = At(samples[0][kSeat], 0.5);
  if (json) {
    std::printf(
        "{\"executor_thread_us\": %.2f, \"driver_seat_us\": %.2f, \"ratio\": %.2f, "
        "\"executor_thread_us_fastest_tenth\": %.2f, \"driver_seat_us_fastest_tenth\": %.2f, "
        "\"recording_ns\": %.1f, \"rounds\": %d}\n",
        thread_us, seat_us, thread_us / seat_us, At(samples[0][kThread], 0.1),
        At(samples[0][kSeat], 0.1), recording_ns, rounds);
    return;
  }
  for (Mode mode : {kThread, kSeat}) {
    std::vector<double>& taken = samples[0][mode];
    std::printf("%-16s median %6.1f us, 10%% %6.1f, 90%% %6.1f, 99%% %6.1f\n",
                mode == kSeat ? "driver's seat" : "executor's thread", At(taken, 0.5),
                At(taken, 0.1), At(taken, 0.9), At(taken, 0.99));
  }
  std::printf("ratio of the medians: %.1f; recording a batch takes %.1f ns\n", thread_us / seat_us,
              recording_ns);
}

}  // namespace
}  // namespace coordd

int main(int argc, char** argv) {
  bool json = false;
  int rounds = 20'000;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--json") == 0) {
      json = true;
    } else {
      rounds = std::atoi(argv[i]);
    }
  }
  if (rounds < coordd::kRoundsPerTurn) return 2;
  coordd::Run(json, rounds);
  return 0;
}
