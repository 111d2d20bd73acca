// A rank of `coordd-bench collectives`, and of bench/peers. Its arguments: the file that the board
// lies in, the name of what is measured, and what the library needs. All are measured alike:
//
// Latency of an operation: from the last rank's entry to the last one's exit; all meet before each
// one in a barrier of their own. With two ranks, each on a core of its own, operations in which one
// lost its core do not count. Buffers are the same each time; unless the plan says otherwise each
// rank writes its whole input and reads its whole output between two operations, as a training
// does. Then the same number of operations one behind the other.
#include <fcntl.h>
#include <immintrin.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/collectives/board.h"
#include "bench/collectives/calls.h"

namespace coordd::bench {
namespace {

int64_t NowNs() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

int64_t LostCores() {
  rusage usage = {};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nivcsw;
}

double Quantile(std::vector<double> values, double part) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(part * static_cast<double>(values.size() - 1) + 0.5)];
}

// What peers get: pages of 4 KiB, aligned to 2 MiB, or so many bytes behind that.
float* PrivateBuffer(int64_t bytes, int32_t offset) {
  constexpr size_t kAlignment = size_t{2} << 20;
  void* const memory = mmap(nullptr, static_cast<size_t>(bytes) + kAlignment,
                            PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("collectives_rank: mmap");
    std::_Exit(1);
  }
  const uintptr_t address = reinterpret_cast<uintptr_t>(memory);
  return reinterpret_cast<float*>((address + kAlignment - 1) / kAlignment * kAlignment +
                                  static_cast<uintptr_t>(offset));
}

class Rank {
 public:
  Rank(Board& board, Calls& calls, std::string peer)
      : board_(board),
        plan_(board.plan),
        calls_(calls),
        rank_(calls.rank()),
        peer_(std::move(peer)) {
    // Behind the start of the library's threads, which may run anywhere.
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(static_cast<size_t>(rank_ % plan_.cores), &set);
    sched_setaffinity(0, sizeof(set), &set);
    constexpr int64_t kPage = 4096;
    const int64_t bytes = plan_.bytes_max + 2 * kPage;
    input_ = calls_.Buffer(bytes);
    output_ = calls_.Buffer(bytes);
    if (input_ == nullptr) input_ = PrivateBuffer(bytes, plan_.offset);
    if (output_ == nullptr) output_ = PrivateBuffer(bytes, plan_.offset);
    std::memset(input_, 0, static_cast<size_t>(plan_.bytes_max));
    std::memset(output_, 0, static_cast<size_t>(plan_.bytes_max));
  }

  void MeasureAll() {
    for (int32_t operation = 0; operation < kOperations; ++operation) {
      if ((plan_.operations >> operation & 1) == 0) continue;
      for (const bool in_place : {false, true}) {
        if (!(in_place ? plan_.in_place : plan_.out_of_place)) continue;
        for (int64_t bytes = 4; bytes <= plan_.bytes_max; bytes *= 4) {
          const Cell cell{static_cast<Operation>(operation), in_place, bytes, input_, output_};
          if (IsMeasured(cell)) Measure(cell);
        }
      }
    }
    calls_.Leave();
  }

 private:
  bool IsMeasured(const Cell& cell) const {
    const bool by_blocks = cell.operation == kAllgather || cell.operation == kReduceScatter ||
                           cell.operation == kAlltoall || cell.operation == kGather;
    if (cell.operation == kBarrier) return cell.bytes == 4 && !cell.in_place;
    if (cell.in_place && (cell.operation == kBroadcast || cell.operation == kAlltoall))
      return false;
    if (by_blocks && cell.bytes < int64_t{4} * plan_.ranks) return false;
    return cell.bytes >= plan_.bytes_min && calls_.Has(cell);
  }

  void Meet() {
    const uint32_t round = board_.rounds.load(std::memory_order_relaxed);
    if (board_.arrived.fetch_add(1, std::memory_order_acq_rel) == plan_.ranks - 1) {
      board_.arrived.store(0, std::memory_order_relaxed);
      board_.rounds.store(round + 1, std::memory_order_release);
      return;
    }
    constexpr uint32_t kLooksBetween = 256;
    for (uint32_t looks = 1; board_.rounds.load(std::memory_order_acquire) == round; ++looks) {
      if (looks % kLooksBetween == 0) calls_.Progress();
      if (plan_.ranks > 2) {
        sched_yield();
      } else {
        _mm_pause();
      }
    }
  }

  // What rank 0 says.
  int64_t Told(int64_t value) {
    Meet();
    if (rank_ == 0) board_.told.store(value);
    Meet();
    const int64_t told = board_.told.load();
    Meet();
    return told;
  }

  void Measure(const Cell& cell) {
    calls_.Prepare(cell);
    CheckResult(cell);
    Meet();
    calls_.Run(cell);
    calls_.Run(cell);
    Meet();
    int64_t shortest_ns = INT64_MAX;
    for (int i = 0; i < 4; ++i) {
      const int64_t start = NowNs();
      calls_.Run(cell);
      shortest_ns = std::min(shortest_ns, std::max<int64_t>(NowNs() - start, 1));
    }
    const double wanted = plan_.seconds * 1e9 / static_cast<double>(shortest_ns);
    const int64_t iterations =
        Told(std::clamp<int64_t>(static_cast<int64_t>(wanted), 5, kMaxIterations));
    RankMoments& moments = board_.moments[rank_];
    for (int64_t i = 0; i < iterations; ++i) {
      if (!plan_.stale) Touch(cell, i);
      const int64_t lost = LostCores();
      Meet();
      moments.in_ns[i] = NowNs();
      calls_.Run(cell);
      moments.out_ns[i] = NowNs();
      moments.interrupted[i] = LostCores() != lost;
    }
    Meet();
    Row row{cell, iterations};
    if (rank_ == 0) Synchronised(row);
    Meet();
    const int64_t start = NowNs();
    int64_t before = start;
    for (int64_t i = 0; i < iterations; ++i) {
      calls_.Run(cell);
      const int64_t now = NowNs();
      moments.in_ns[i] = now - before;
      before = now;
    }
    Meet();
    row.mean_us = static_cast<double>(NowNs() - start) / 1e3 / static_cast<double>(iterations);
    if (rank_ == 0) Print(row);
    Meet();
  }

  struct Row {
    Cell cell;
    int64_t iterations = 0;
    std::vector<double> latency_us = {}, from_first_entry_us = {};
    double mean_us = 0, interrupted = 0;
  };

  void Synchronised(Row& row) const {
    int64_t dropped = 0;
    for (int64_t i = 0; i < row.iterations; ++i) {
      int64_t first_in = INT64_MAX, last_in = 0, last_out = 0;
      bool interrupted = false;
      for (int32_t r = 0; r < plan_.ranks; ++r) {
        const RankMoments& moments = board_.moments[r];
        first_in = std::min(first_in, moments.in_ns[i]);
        last_in = std::max(last_in, moments.in_ns[i]);
        last_out = std::max(last_out, moments.out_ns[i]);
        interrupted |= moments.interrupted[i];
      }
      if (interrupted && plan_.ranks == 2) {
        ++dropped;
        // Five are wanted in any case.
        if (static_cast<int64_t>(row.latency_us.size()) + row.iterations - i > 5) continue;
      }
      row.latency_us.push_back(static_cast<double>(last_out - last_in) / 1e3);
      row.from_first_entry_us.push_back(static_cast<double>(last_out - first_in) / 1e3);
    }
    row.interrupted = static_cast<double>(dropped) / static_cast<double>(row.iterations);
  }

  void Print(const Row& row) const {
    // Of a broadcast the last rank's, since the root need not wait for anybody.
    const RankMoments& moments =
        board_.moments[row.cell.operation == kBroadcast ? plan_.ranks - 1 : 0];
    std::vector<double> in_a_row_us;
    for (int64_t i = 0; i < row.iterations; ++i)
      in_a_row_us.push_back(static_cast<double>(moments.in_ns[i]) / 1e3);
    std::printf("%s,%d,%s,%d,%lld,%lld,%.3f,%.3f,%.3f,%.3f,%.3f,%.3f,%.3f\n", peer_.c_str(),
                plan_.ranks, kOperationNames[row.cell.operation], row.cell.in_place ? 1 : 0,
                static_cast<long long>(row.cell.bytes), static_cast<long long>(row.iterations),
                Quantile(row.latency_us, 0.5), Quantile(row.latency_us, 0.99),
                Quantile(row.from_first_entry_us, 0.5), row.mean_us, Quantile(in_a_row_us, 0.5),
                Quantile(in_a_row_us, 0.99), row.interrupted);
    std::fflush(stdout);
  }

  // The elements of the input that this rank gives: from, and how many.
  std::pair<int64_t, int64_t> Given(const Cell& cell) const {
    const int64_t count = cell.bytes / 4;
    if (cell.operation == kBarrier || (cell.operation == kBroadcast && rank_ != 0)) return {0, 0};
    if (cell.operation != kAllgather && cell.operation != kGather) return {0, count};
    const int64_t block = count / plan_.ranks;
    return {cell.in_place ? rank_ * block : 0, block};
  }
  bool HasResult(const Cell& cell) const {
    return rank_ == 0 || (cell.operation != kReduce && cell.operation != kGather);
  }
  static float* InputOf(const Cell& cell) {
    return cell.in_place || cell.operation == kBroadcast ? cell.output : cell.input;
  }

  // Not inline: what is read must not be optimised away, nor anything be moved across.
  __attribute__((noinline)) void Touch(const Cell& cell, int64_t iteration) const {
    const auto [from, count] = Given(cell);
    const float value = static_cast<float>(iteration % 4 + rank_);
    std::fill_n(InputOf(cell) + from, count, value);
    if ((cell.in_place && cell.operation != kBroadcast) || !HasResult(cell)) return;
    float sum = 0;
    constexpr int64_t kLine = 16;  // floats in a cache line
    for (int64_t i = 0; i < cell.bytes / 4; i += kLine) sum += cell.output[i];
    asm volatile("" : : "x"(sum));  // somebody needs it
  }

  // Every element, once.
  void CheckResult(const Cell& cell) {
    const int64_t count = cell.bytes / 4, block = count / plan_.ranks;
    std::fill_n(cell.input, count, static_cast<float>(rank_ + 1));
    std::fill_n(cell.output, count, static_cast<float>(rank_ + 1));
    Meet();
    calls_.Run(cell);
    const float sum = static_cast<float>(plan_.ranks * (plan_.ranks + 1) / 2);
    const bool by_sender =
        cell.operation == kAllgather || cell.operation == kAlltoall || cell.operation == kGather;
    int64_t from = 0, until = by_sender ? block * plan_.ranks : count;
    if (cell.operation == kReduceScatter) {
      from = cell.in_place && !calls_.ScattersToTheFront() ? rank_ * block : 0;
      until = from + block;
    }
    if (cell.operation == kBarrier || !HasResult(cell)) until = 0;
    for (int64_t i = from; i < until; ++i) {
      const float expected = by_sender                      ? static_cast<float>(i / block + 1)
                             : cell.operation == kBroadcast ? 1.0f
                                                            : sum;
      if (cell.output[i] == expected) continue;
      std::fprintf(
          stderr,
          "collectives_rank: %s of %lld bytes, %s: element %lld on rank %d is %g, expected "
          "%g\n",
          kOperationNames[cell.operation], static_cast<long long>(cell.bytes),
          cell.in_place ? "in place" : "out of place", static_cast<long long>(i), rank_,
          static_cast<double>(cell.output[i]), static_cast<double>(expected));
      std::_Exit(1);
    }
    std::memset(cell.input, 0, static_cast<size_t>(cell.bytes));
    std::memset(cell.output, 0, static_cast<size_t>(cell.bytes));
  }

  Board& board_;
  const CollectivesPlan& plan_;
  Calls& calls_;
  const int32_t rank_;
  const std::string peer_;
  float* input_ = nullptr;
  float* output_ = nullptr;
};

}  // namespace
}  // namespace coordd::bench

int main(int argc, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int board = argc < 3 ? -1 : open(argv[1], O_RDWR | O_CLOEXEC);
  void* const memory =
      mmap(nullptr, sizeof(coordd::bench::Board), PROT_READ | PROT_WRITE, MAP_SHARED, board, 0);
  if (memory == MAP_FAILED) {
    std::fprintf(stderr, "%s: is started by `coordd-bench collectives` and bench/peers\n", argv[0]);
    return 2;
  }
  auto& shared = *static_cast<coordd::bench::Board*>(memory);
  const std::string peer = argv[2];
  const auto calls = coordd::bench::Calls::Start(shared.plan, &argc, &argv);
  coordd::bench::Rank(shared, *calls, peer).MeasureAll();
  return 0;
}
