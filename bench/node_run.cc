// What collectives among processes of one node cost on mapped memory (worker/node/node_run.h),
// without anything above it: no names, no executor, waiting by spinning.
//
//     node_run [--ranks N] [--max BYTES] [--seconds S] [--ops allreduce,broadcast,...] [--private]
//              [--limit PROGRAM]
//
// Prints CSV: op, in_place, bytes, iterations, p50_us, p99_us. A time is from the last entry to the
// last exit over the ranks; bytes are the total buffer of a rank, as nccl-tests counts. Before each
// operation a rank writes its whole input and reads its whole output, as training does. Rank i runs
// on core i modulo the cores there are; with one rank per core, iterations in which one was
// preempted do not count. float32, sum. --private: buffers that the others have not mapped.
// --limit: a program that prints such rows for a prototype (peer, ranks, op, in_place, bytes,
// iterations, p50_us, ...), run after each operation of ours; its rows begin with "limit:".
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "worker/node/node_run.h"

namespace coordd {
namespace {

constexpr int kMaxRanks = 16;
constexpr int kMaxIterations = 6000;
constexpr int kMinIterations = 5;
constexpr int kWarmUps = 4;

struct Options {
  int ranks = 2;
  int64_t max_bytes = int64_t{64} << 20;
  double seconds = 0.1;  // per row
  std::string ops = "allreduce,allgather,broadcast,reducescatter,alltoall,barrier";
  bool private_buffers = false;
  std::string limit;
};

// In memory that all ranks share, zero at first.
struct Shared {
  alignas(64) std::atomic<int64_t> arrived;
  alignas(64) std::atomic<int64_t> iterations;
  alignas(64) double start[kMaxRanks][kMaxIterations];
  double end[kMaxRanks][kMaxIterations];
  bool preempted[kMaxRanks][kMaxIterations];
};

template <typename T>
T* MapShared(size_t size_bytes) {
  void* memory = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  COORDD_CHECK(memory != MAP_FAILED);
  return static_cast<T*>(memory);
}

double NowMicroseconds() {
  return std::chrono::duration<double, std::micro>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

int64_t Preemptions() {
  rusage usage = {};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nivcsw;
}

struct Operation {
  CollectiveKind kind;
  bool in_place;
  int64_t bytes;
};

class RankOfBench {
 public:
  RankOfBench(const Options& options, Shared& shared, std::vector<NodeMemory> memories, int rank)
      : options_(options),
        shared_(shared),
        rank_(rank),
        lane_(LaneId{0}, memories, rank),
        private_(options.private_buffers ? 2 * static_cast<size_t>(options.max_bytes) : 0) {
    const NodeMemory own = memories[static_cast<size_t>(rank)];
    constexpr size_t kFront = size_t{24} << 20;  // board and staging
    staging_ = own.subspan(size_t{20} << 20, size_t{1} << 20);
    std::byte* const buffers = private_.empty() ? own.data() + kFront : private_.data();
    input_ = {buffers, static_cast<size_t>(options.max_bytes)};
    output_ = {buffers + options.max_bytes, static_cast<size_t>(options.max_bytes)};
    // Pages are there before anything is timed.
    std::memset(input_.data(), 0, input_.size());
    std::memset(output_.data(), 0, output_.size());
  }

  void Measure(const Operation& operation) {
    SetArguments(operation);
    double warm_us = 1e9;
    for (int i = 0; i < kWarmUps; ++i) {
      Touch(operation, i);
      Barrier();
      const double start = NowMicroseconds();
      Run();
      warm_us = std::min(warm_us, NowMicroseconds() - start);
    }
    if (rank_ == 0) {
      shared_.iterations = static_cast<int64_t>(std::clamp(
          options_.seconds * 1e6 / warm_us, double{kMinIterations}, double{kMaxIterations}));
    }
    Barrier();
    const int64_t iterations = shared_.iterations;
    for (int64_t i = 0; i < iterations; ++i) {
      Touch(operation, i);
      const int64_t before = Preemptions();
      Barrier();
      shared_.start[rank_][i] = NowMicroseconds();
      Run();
      shared_.end[rank_][i] = NowMicroseconds();
      shared_.preempted[rank_][i] = Preemptions() != before;
    }
    Barrier();
    if (rank_ == 0) Print(operation, iterations);
    Barrier();
  }

 private:
  void Barrier() {
    const int64_t number = ++barriers_ * options_.ranks;
    shared_.arrived.fetch_add(1, std::memory_order_acq_rel);
    while (shared_.arrived.load(std::memory_order_acquire) < number) {
      if (options_.ranks > static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN))) sched_yield();
    }
  }

  void SetArguments(const Operation& operation) {
    const size_t bytes = static_cast<size_t>(operation.bytes);
    const size_t block = bytes / 4 / static_cast<size_t>(options_.ranks) * 4;
    const size_t own_offset = block * static_cast<size_t>(rank_);
    const std::vector<int64_t> blocks(static_cast<size_t>(options_.ranks),
                                      static_cast<int64_t>(block));
    args_ = CollectiveArgs();
    args_.kind = operation.kind;
    args_.dtype = DataType::kFloat32;
    args_.op = ReduceOp::kSum;
    args_.input = input_.subspan(0, bytes);
    args_.output = output_.subspan(0, bytes);
    switch (operation.kind) {
      case CollectiveKind::kAllgather:
        args_.output_block_bytes = blocks;
        args_.output = args_.output.subspan(0, block * blocks.size());
        args_.input = operation.in_place ? args_.output.subspan(own_offset, block)
                                         : args_.input.subspan(0, block);
        break;
      case CollectiveKind::kReducescatter:
        args_.input_block_bytes = blocks;
        args_.input = args_.input.subspan(0, block * blocks.size());
        args_.output =
            operation.in_place ? input_.subspan(own_offset, block) : args_.output.subspan(0, block);
        break;
      case CollectiveKind::kAlltoall:
        args_.input_block_bytes = args_.output_block_bytes = blocks;
        args_.input = args_.input.subspan(0, block * blocks.size());
        args_.output = args_.output.subspan(0, block * blocks.size());
        break;
      case CollectiveKind::kBroadcast:
        args_.input = {};
        break;
      case CollectiveKind::kBarrier:
        args_.input = {};
        args_.output = {};
        break;
      default:
        if (operation.in_place) args_.output = input_.subspan(0, bytes);
    }
  }

  // Fresh data: a rank has just written its input, and read its last result.
  void Touch(const Operation& operation, int64_t iteration) {
    const bool gives = operation.kind != CollectiveKind::kBroadcast || rank_ == 0;
    const absl::Span<const std::byte> input =
        operation.kind == CollectiveKind::kBroadcast ? args_.output : args_.input;
    if (gives) {
      auto* const values = reinterpret_cast<float*>(const_cast<std::byte*>(input.data()));
      std::fill_n(values, input.size() / 4, static_cast<float>(iteration % 4 + rank_));
    }
    if (operation.in_place) return;
    const auto* const values = reinterpret_cast<const float*>(args_.output.data());
    float sum = 0;
    for (size_t i = 0; i < args_.output.size() / 4; i += 16) sum += values[i];
    sink_ = sum;
  }

  void Run() {
    ++args_.sequence;
    NodeCollectiveRun run(args_, lane_, staging_, {});
    while (!run.finished()) {
      const bool moved = run.Advance();
      if (!moved && options_.ranks > static_cast<int>(cores_)) sched_yield();
    }
    COORDD_CHECK(run.status().ok());
  }

  void Print(const Operation& operation, int64_t iterations) const {
    std::vector<double> times;
    for (int64_t i = 0; i < iterations; ++i) {
      double start = 0, end = 0;
      bool preempted = false;
      for (int r = 0; r < options_.ranks; ++r) {
        start = std::max(start, shared_.start[r][i]);
        end = std::max(end, shared_.end[r][i]);
        preempted |= shared_.preempted[r][i];
      }
      const bool needed = static_cast<int64_t>(times.size()) + iterations - i <= kMinIterations;
      if (!preempted || options_.ranks > cores_ || needed) times.push_back(end - start);
    }
    std::sort(times.begin(), times.end());
    std::printf("%s,%d,%lld,%zu,%.3f,%.3f\n", std::string(Name(operation.kind)).c_str(),
                operation.in_place ? 1 : 0, static_cast<long long>(operation.bytes), times.size(),
                times[times.size() / 2], times[times.size() * 99 / 100]);
    std::fflush(stdout);
  }

  const Options& options_;
  Shared& shared_;
  const int rank_;
  const int64_t cores_ = sysconf(_SC_NPROCESSORS_ONLN);
  NodeLane lane_;
  std::vector<std::byte> private_;
  absl::Span<std::byte> staging_, input_, output_;
  CollectiveArgs args_;
  int64_t barriers_ = 0;
  volatile float sink_ = 0;
};

constexpr std::array kOperations = {CollectiveKind::kAllreduce, CollectiveKind::kAllgather,
                                    CollectiveKind::kBroadcast, CollectiveKind::kReducescatter,
                                    CollectiveKind::kAlltoall,  CollectiveKind::kBarrier};

std::vector<Operation> RowsOf(const Options& options, CollectiveKind kind) {
  const std::vector<std::string> wanted = absl::StrSplit(options.ops, ',');
  if (std::find(wanted.begin(), wanted.end(), std::string(Name(kind))) == wanted.end()) return {};
  if (kind == CollectiveKind::kBarrier) return {{kind, false, 4}};
  const bool has_in_place = kind != CollectiveKind::kBroadcast && kind != CollectiveKind::kAlltoall;
  const bool has_blocks = kind != CollectiveKind::kAllreduce && kind != CollectiveKind::kBroadcast;
  std::vector<Operation> operations;
  for (const bool in_place : {false, true}) {
    if (in_place && !has_in_place) continue;
    for (int64_t bytes = has_blocks ? 16 : 4; bytes <= options.max_bytes; bytes *= 4)
      operations.push_back({kind, in_place, bytes});
  }
  return operations;
}

// Rank `rank` of all rows of one kind.
void RunRank(const Options& options, Shared& shared, const std::vector<NodeMemory>& memories,
             int rank, CollectiveKind kind) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(static_cast<size_t>(rank % sysconf(_SC_NPROCESSORS_ONLN)), &cores);
  sched_setaffinity(0, sizeof(cores), &cores);
  RankOfBench bench(options, shared, memories, rank);
  for (const Operation& operation : RowsOf(options, kind)) bench.Measure(operation);
}

void MeasureOurs(const Options& options, CollectiveKind kind) {
  std::fflush(stdout);
  auto* const shared = MapShared<Shared>(sizeof(Shared));
  const size_t arena_bytes = static_cast<size_t>(2 * options.max_bytes) + (size_t{24} << 20);
  std::vector<NodeMemory> memories;
  for (int r = 0; r < options.ranks; ++r)
    memories.push_back({MapShared<std::byte>(arena_bytes), arena_bytes});
  for (int rank = 0; rank < options.ranks; ++rank) {
    if (fork() != 0) continue;
    RunRank(options, *shared, memories, rank, kind);
    std::fflush(stdout);
    _exit(0);
  }
  for (int rank = 0; rank < options.ranks; ++rank) {
    int status = 0;
    wait(&status);
    COORDD_CHECK(status == 0);
  }
  for (const NodeMemory& memory : memories) munmap(memory.data(), memory.size());
  munmap(shared, sizeof(Shared));
}

void MeasureLimit(const Options& options, CollectiveKind kind) {
  const std::string name =
      kind == CollectiveKind::kReducescatter ? "reduce_scatter" : std::string(Name(kind));
  const std::string command =
      absl::StrCat("CB_OPS=", name, " CB_NAME=limit CB_SMALL=512 CB_MAX=", options.max_bytes,
                   " CB_TARGET=", options.seconds, " ", options.limit, " ", options.ranks, " ",
                   options.private_buffers ? "staged" : "zc");
  FILE* const rows = popen(command.c_str(), "r");
  COORDD_CHECK(rows != nullptr);
  std::array<char, 512> line;
  while (std::fgets(line.data(), static_cast<int>(line.size()), rows) != nullptr) {
    const std::vector<std::string> words = absl::StrSplit(line.data(), ',');
    if (words.size() < 8) continue;
    std::printf("limit:%s,%s,%s,%s,%s,%s\n", std::string(Name(kind)).c_str(), words[3].c_str(),
                words[4].c_str(), words[5].c_str(), words[6].c_str(), words[7].c_str());
  }
  pclose(rows);
}

bool Parse(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--private") {
      options.private_buffers = true;
      continue;
    }
    if (i + 1 == argc) return false;
    const std::string value = argv[++i];
    if (flag == "--ops") {
      options.ops = value;
    } else if (flag == "--limit") {
      options.limit = value;
    } else if (!(flag == "--ranks" && absl::SimpleAtoi(value, &options.ranks)) &&
               !(flag == "--max" && absl::SimpleAtoi(value, &options.max_bytes)) &&
               !(flag == "--seconds" && absl::SimpleAtod(value, &options.seconds))) {
      return false;
    }
  }
  return options.ranks >= 1 && options.ranks <= kMaxRanks && options.max_bytes >= 64;
}

}  // namespace
}  // namespace coordd

int main(int argc, char** argv) {
  coordd::Options options;
  if (!coordd::Parse(argc, argv, options)) {
    std::fprintf(stderr,
                 "usage: node_run [--ranks N] [--max BYTES] [--seconds S] [--ops LIST] [--private] "
                 "[--limit PROGRAM]\n");
    return 2;
  }
  std::printf("op,in_place,bytes,iterations,p50_us,p99_us\n");
  for (const coordd::CollectiveKind kind : coordd::kOperations) {
    if (coordd::RowsOf(options, kind).empty()) continue;
    coordd::MeasureOurs(options, kind);
    if (!options.limit.empty()) coordd::MeasureLimit(options, kind);
  }
  return 0;
}
