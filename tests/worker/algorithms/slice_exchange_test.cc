// Collectives on mapped memory inside nodes and by slices between them, with all ranks in one
// thread: the test chooses who goes on, a few bytes at a time.
#include "worker/algorithms/slice_exchange.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "tests/worker/support/cluster.h"
#include "tests/worker/support/in_process_transport.h"
#include "tests/worker/support/reference.h"
#include "worker/base/aligned_buffer.h"
#include "worker/node/node_run.h"
#include "worker/numeric/reduce_kernels.h"

namespace coordd {
namespace {

constexpr NodeRunOptions kTinySteps = {
    .inline_bytes_max = 64,
    .staging = {.buffer_bytes = 1024, .broadcast_bytes = 128, .exchange_bytes = 1024},
    .stream_bytes_min = 3000,
    .work_bytes_max = 448};
constexpr RunOptions kTinySegments = {.segment_bytes = 192};

struct ClusterJob {
  DataType dtype;
  ReduceOp op;
  int64_t count;  // of an allgather or a reducescatter about that of each block
  double scale;
  bool in_place;
  uint32_t mapped;  // bits: which ranks' buffers are
  int64_t sequence;
  CollectiveKind kind = CollectiveKind::kAllreduce;
  int32_t root = 0;

  bool gathers() const { return kind == CollectiveKind::kAllgather; }
  bool reduces_to_root() const { return kind == CollectiveKind::kReduce; }
  bool scatters() const { return kind == CollectiveKind::kReducescatter; }
  // By rank: blocks of different sizes, some of them empty; else all is one.
  std::vector<int64_t> Counts(int32_t ranks) const {
    std::vector<int64_t> counts;
    for (int32_t r = 0; r < ranks; ++r)
      counts.push_back((r + sequence) % 4 == 3 ? 0 : count + r % 3);
    return counts;
  }
};

// A rank that works through the jobs.
class ClusterRank {
 public:
  ClusterRank(Cluster& cluster, int32_t rank)
      : cluster_(cluster),
        rank_(rank),
        node_(cluster.NodeOf(rank)),
        carries_(cluster.NumberOf(rank) < cluster.carriers),
        lane_(LaneId{7}, cluster.MemoriesOf(node_), cluster.NumberOf(rank)) {
    for (int32_t node = 0; node < cluster.nodes; ++node)
      across_.push_back(Rank{cluster.FirstOf(node) + (carries_ ? cluster.NumberOf(rank) : 0)});
  }

  bool Done(const std::vector<ClusterJob>& jobs) const {
    return !status_.ok() || (next_ == jobs.size() && run_ == nullptr);
  }
  const absl::Status& status() const { return status_; }
  // Of each job, in order.
  const std::vector<Bytes>& results() const { return results_; }
  bool is_running() const { return run_ != nullptr; }
  // As HostBackend does.
  void Abort() {
    transport().Abort();
    if (run_ != nullptr) run_->Fail(absl::AbortedError("aborted"));
  }
  // As a process that dies, but for its memory.
  void GoAway() { cluster_.transports[static_cast<size_t>(rank_)].reset(); }

  bool Advance(const std::vector<ClusterJob>& jobs) {
    if (Done(jobs)) return false;
    bool moved = transport().Progress();
    if (run_ == nullptr) Begin(jobs[next_++]);
    moved |= run_->Advance();
    if (!run_->finished()) return moved;
    status_ = run_->status();
    EXPECT_TRUE(exchange_->idle());
    run_.reset();
    exchange_.reset();
    if (status_.ok()) Check();
    std::fill(input_.begin(), input_.end(), std::byte{0xEE});  // nobody looks at it any more
    return true;
  }

 private:
  InProcessTransport& transport() { return *cluster_.transports[static_cast<size_t>(rank_)]; }
  int32_t ranks() const { return cluster_.size; }
  Bytes InputOf(int32_t rank) const {
    const std::vector<int64_t> counts = job_.Counts(ranks());
    const int64_t count = job_.gathers() ? counts[static_cast<size_t>(rank)]
                          : job_.scatters()
                              ? std::accumulate(counts.begin(), counts.end(), int64_t{0})
                              : job_.count;
    return TestInput(job_.dtype, rank, count, static_cast<int32_t>(job_.sequence));
  }
  // Where the block of a rank begins, in bytes.
  size_t BlockAt(int32_t rank) const {
    const std::vector<int64_t> counts = job_.Counts(ranks());
    return static_cast<size_t>(std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0}) *
                               SizeOf(job_.dtype));
  }
  size_t BlockBytes(int32_t rank) const { return BlockAt(rank + 1) - BlockAt(rank); }
  absl::Span<std::byte> Place(bool mapped, Bytes& heap, int64_t number, size_t size) {
    heap.assign(mapped ? 0 : size, std::byte{0});
    if (!mapped) return absl::MakeSpan(heap);
    return lane_.memory(lane_.self())
        .subspan(static_cast<size_t>(Cluster::kBoardRoom + number * Cluster::kBufferRoom), size);
  }

  void Begin(const ClusterJob& job) {
    job_ = job;
    const bool mapped = (job.mapped >> rank_ & 1) != 0;
    const Bytes value = InputOf(rank_);
    const size_t output_bytes = job.gathers()                                ? BlockAt(ranks())
                                : job.scatters()                             ? BlockBytes(rank_)
                                : job.reduces_to_root() && rank_ != job.root ? 0
                                                                             : value.size();
    const size_t larger = std::max(value.size(), output_bytes);
    // In place, the smaller one lies in the larger one.
    const absl::Span<std::byte> first =
        Place(mapped, input_heap_, 1, job.in_place ? larger : value.size());
    const bool blocks = job.gathers() || job.scatters();
    const size_t within = job.in_place && blocks ? BlockAt(rank_) : 0;
    input_ = first.subspan(job.gathers() ? within : 0, value.size());
    output_ = job.in_place ? first.subspan(job.scatters() ? within : 0, output_bytes)
                           : Place(mapped, output_heap_, 2, output_bytes);
    std::copy(value.begin(), value.end(), input_.begin());
    args_ = CollectiveArgs();
    args_.kind = job.kind;
    args_.root = Rank{job.root};
    const bool broadcast = job.kind == CollectiveKind::kBroadcast;
    for (int32_t r = 0; blocks && r < ranks(); ++r) {
      (job.gathers() ? args_.output_block_bytes : args_.input_block_bytes)
          .push_back(static_cast<int64_t>(BlockBytes(r)));
    }
    args_.dtype = job.dtype;
    args_.op = job.op;
    args_.lane = LaneId{7};
    args_.sequence = job.sequence;
    if (!broadcast) args_.input = input_;
    args_.output = output_;
    args_.scale = job.scale;
    args_.scaled = job.scale == 1.0 ? nullptr : &scaled_;
    const int64_t slice_bytes =
        NodeCollectiveRun::SliceBytesMax(args_, cluster_.carriers, cluster_.nodes, kTinySteps);
    const int32_t root = ToInt(args_.root);
    const AcrossNodes across{.ranks = across_,
                             .self = node_,
                             .root = cluster_.NodeOf(root),
                             .root_member = cluster_.NumberOf(root),
                             .carriers = cluster_.carriers,
                             .carries = carries_,
                             .grid = &cluster_.grid};
    exchange_ =
        std::make_unique<SliceExchange>(args_, across, slice_bytes, kTinySegments, transport());
    scratch_ = AlignedBuffer(std::max<int64_t>(64, exchange_->scratch_bytes()));
    exchange_->Use(scratch_.span());
    const int64_t staging_bytes =
        NodeCollectiveRun::StagingBytes(args_, lane_, kTinySteps, cluster_.nodes);
    ASSERT_LE(staging_bytes, Cluster::kBufferRoom);
    const auto staging =
        lane_.memory(lane_.self())
            .subspan(static_cast<size_t>(Cluster::kBoardRoom), static_cast<size_t>(staging_bytes));
    run_ = std::make_unique<NodeCollectiveRun>(args_, lane_, staging, kTinySteps, exchange_.get());
  }

  void Check() {
    std::vector<Bytes> inputs;
    for (int32_t r = 0; r < ranks(); ++r) inputs.push_back(InputOf(r));
    if (!job_.in_place) {
      EXPECT_TRUE(
          std::equal(input_.begin(), input_.end(), inputs[static_cast<size_t>(rank_)].begin()))
          << "its input has changed";
    }
    if (job_.gathers()) {
      Bytes all;
      for (const Bytes& input : inputs) all.insert(all.end(), input.begin(), input.end());
      EXPECT_TRUE(std::equal(output_.begin(), output_.end(), all.begin(), all.end()));
    } else if (job_.scatters()) {
      for (Bytes& input : inputs) {
        const auto begin = input.begin() + static_cast<std::ptrdiff_t>(BlockAt(rank_));
        input = Bytes(begin, begin + static_cast<std::ptrdiff_t>(BlockBytes(rank_)));
      }
      const int64_t count = static_cast<int64_t>(output_.size()) / SizeOf(job_.dtype);
      if (job_.scale != 1.0) Scale(job_.dtype, 1 / job_.scale, output_.data(), count);
      EXPECT_EQ(CheckReduced(job_.dtype, job_.op, inputs, output_.data(), count), "");
    } else if (job_.kind == CollectiveKind::kBroadcast) {
      const Bytes& sent = inputs[static_cast<size_t>(job_.root)];
      EXPECT_TRUE(std::equal(output_.begin(), output_.end(), sent.begin(), sent.end()));
    } else if (job_.scale == 1.0 && !output_.empty()) {
      EXPECT_EQ(CheckReduced(job_.dtype, job_.op, inputs, output_.data(), job_.count), "");
    }
    results_.emplace_back(output_.begin(), output_.end());
  }

  Cluster& cluster_;
  const int32_t rank_, node_;
  const bool carries_;
  NodeLane lane_;
  std::vector<Rank> across_;
  size_t next_ = 0;
  ClusterJob job_ = {};
  CollectiveArgs args_;
  bool scaled_ = false;
  Bytes input_heap_, output_heap_;
  absl::Span<std::byte> input_, output_;
  AlignedBuffer scratch_{64};
  std::unique_ptr<SliceExchange> exchange_;
  std::unique_ptr<NodeCollectiveRun> run_;
  std::vector<Bytes> results_;
  absl::Status status_;
};

std::vector<ClusterJob> RandomClusterJobs(std::mt19937& random, int32_t number, int32_t size) {
  // With one slice that is empty, with a few steps, and with many.
  constexpr int64_t kCounts[] = {17, 33, 130, 1001, 5003, 20011};
  constexpr int64_t kBlockCounts[] = {0, 9, 130, 1001, 2003};
  std::vector<ClusterJob> jobs;
  for (int32_t i = 0; i < number; ++i) {
    ClusterJob job{DataType::kFloat32,
                   kAllReduceOps[random() % std::size(kAllReduceOps)],
                   kCounts[random() % std::size(kCounts)],
                   random() % 3 == 0 ? 0.25 : 1.0,
                   random() % 2 == 0,
                   0,
                   i + 1};
    if (random() % 2 == 0) job.dtype = kAllDataTypes[random() % std::size(kAllDataTypes)];
    if (job.dtype != DataType::kFloat32) job.scale = 1.0;
    if (job.count * SizeOf(job.dtype) <= kTinySteps.inline_bytes_max) job.count = 1001;
    // All, none, or some of the ranks have their buffers mapped: of a node all, of another one
    // none.
    const uint32_t some = static_cast<uint32_t>(random());
    constexpr CollectiveKind kKinds[] = {CollectiveKind::kAllreduce, CollectiveKind::kBroadcast,
                                         CollectiveKind::kReduce, CollectiveKind::kAllgather,
                                         CollectiveKind::kReducescatter};
    job.kind = kKinds[random() % std::size(kKinds)];
    if (job.kind == CollectiveKind::kBroadcast) {
      job.root = static_cast<int32_t>(random() % static_cast<uint32_t>(size));
      job.in_place = true;
    }
    if (job.reduces_to_root())
      job.root = static_cast<int32_t>(random() % static_cast<uint32_t>(size));
    if (job.kind == CollectiveKind::kBroadcast || job.gathers()) job.scale = 1.0;
    if (job.gathers() || job.scatters())
      job.count = kBlockCounts[random() % std::size(kBlockCounts)];
    job.mapped = random() % 3 == 0 ? ~0u : random() % 2 == 0 ? 0u : some;
    jobs.push_back(job);
  }
  return jobs;
}

void DriveAll(std::mt19937& random, const std::vector<ClusterJob>& jobs,
              std::vector<std::unique_ptr<ClusterRank>>& ranks, int64_t turns) {
  auto all_done = [&] {
    return std::all_of(ranks.begin(), ranks.end(), [&](auto& rank) { return rank->Done(jobs); });
  };
  for (; turns > 0 && !all_done(); --turns) {
    // Often the same one for a while.
    ClusterRank& member = *ranks[random() % ranks.size()];
    for (uint32_t i = random() % 8; i > 0; --i) member.Advance(jobs);
  }
}

TEST(SliceExchange, CutsWhatThereIsIntoASliceForEachTag) {
  const auto slice_bytes = [](CollectiveKind kind, std::vector<int64_t> blocks) {
    CollectiveArgs args;
    args.kind = kind;
    args.output_block_bytes = args.input_block_bytes = std::move(blocks);
    return SliceExchange::SliceBytesFor(args);
  };
  for (const CollectiveKind kind : {CollectiveKind::kAllgather, CollectiveKind::kReducescatter}) {
    EXPECT_EQ(slice_bytes(kind, {10, 0, 500'000, 7}), 500'000 / 4 / 64 * 64);
    EXPECT_EQ(slice_bytes(kind, {10, 0, 100'000, 7}), 64 << 10);
    EXPECT_EQ(slice_bytes(kind, {10, 0, 1'000, 7}), 1'024);  // all of it
    EXPECT_EQ(slice_bytes(kind, {100 << 20, 0}), 256 << 10);
    // So that many nodes' slices do not take much scratch.
    EXPECT_EQ(slice_bytes(kind, std::vector<int64_t>(128, 8 << 20)), 128 << 10);
    EXPECT_EQ(slice_bytes(kind, std::vector<int64_t>(4096, 8 << 20)), 64 << 10);
  }
  const Bytes input(1'000'000);
  CollectiveArgs args;
  args.input = input;
  EXPECT_EQ(SliceExchange::SliceBytesFor(args), 1'000'000 / 4 / 64 * 64);
  CollectiveArgs broadcast;
  broadcast.kind = CollectiveKind::kBroadcast;
  Bytes output(8'000'000);
  broadcast.output = absl::MakeSpan(output);
  EXPECT_EQ(SliceExchange::SliceBytesFor(broadcast), 8'000'000 / 64 / 64 * 64);
}

// All ranks that have a whole result have the same.
void ExpectSameBits(const std::vector<std::unique_ptr<ClusterRank>>& ranks,
                    const std::vector<ClusterJob>& jobs, uint32_t seed) {
  for (const auto& rank : ranks) {
    ASSERT_TRUE(rank->Done(jobs)) << "hangs with seed " << seed;
    ASSERT_EQ(rank->status(), absl::OkStatus());
    for (size_t i = 0; i < jobs.size(); ++i) {
      if (!jobs[i].scatters() && !jobs[i].reduces_to_root()) {
        EXPECT_TRUE(SameBytes(rank->results()[i], ranks[0]->results()[i])) << "job " << i;
      }
    }
  }
}

TEST(SliceExchange, HierarchicalCollectivesInEveryOrderOfSteps) {
  for (uint32_t seed = 1; seed <= 36; ++seed) {
    std::mt19937 random(seed);
    const int32_t nodes = 2 + static_cast<int32_t>(seed % 3),
                  each = 2 + static_cast<int32_t>(seed % 2);
    Cluster cluster(nodes, each);
    std::vector<std::unique_ptr<ClusterRank>> ranks;
    for (int32_t r = 0; r < nodes * each; ++r)
      ranks.push_back(std::make_unique<ClusterRank>(cluster, r));
    const std::vector<ClusterJob> jobs = RandomClusterJobs(random, 12, nodes * each);
    DriveAll(random, jobs, ranks, 4'000'000);
    ExpectSameBits(ranks, jobs, seed);
  }
}

// Allreduces, allgathers and reducescatters go through the racks' dimensions.
TEST(SliceExchange, ThroughRacksInEveryOrderOfSteps) {
  const GridOfRanks kGrids[] = {
      {{2, 2}, {}}, {{2, 2}, {Rank{3}, Rank{0}, Rank{2}, Rank{1}}}, {{3, 2}, {}}, {{2, 3}, {}}};
  for (uint32_t seed = 1; seed <= 24; ++seed) {
    std::mt19937 random(seed);
    const GridOfRanks& grid = kGrids[seed % std::size(kGrids)];
    Cluster cluster(grid.sizes[0] * grid.sizes[1], 2);
    cluster.grid = grid;
    std::vector<std::unique_ptr<ClusterRank>> ranks;
    for (int32_t r = 0; r < cluster.size; ++r)
      ranks.push_back(std::make_unique<ClusterRank>(cluster, r));
    std::vector<ClusterJob> jobs = RandomClusterJobs(random, 16, cluster.size);
    std::erase_if(jobs, [](const ClusterJob& job) {
      return job.kind == CollectiveKind::kBroadcast || job.reduces_to_root();
    });
    DriveAll(random, jobs, ranks, 8'000'000);
    ExpectSameBits(ranks, jobs, seed);
  }
}

// As many members of each node as the smallest one has exchange slices, also where that is one.
TEST(SliceExchange, NodesOfDifferentSizesInEveryOrderOfSteps) {
  const std::vector<int32_t> kNodes[] = {{2, 1}, {1, 4}, {3, 2, 1}, {2, 4}, {3, 2, 3}, {1, 1, 2}};
  for (uint32_t seed = 1; seed <= 36; ++seed) {
    std::mt19937 random(seed);
    Cluster cluster(kNodes[seed % std::size(kNodes)]);
    std::vector<std::unique_ptr<ClusterRank>> ranks;
    for (int32_t r = 0; r < cluster.size; ++r)
      ranks.push_back(std::make_unique<ClusterRank>(cluster, r));
    std::vector<ClusterJob> jobs = RandomClusterJobs(random, 16, cluster.size);
    std::erase_if(jobs, [](const ClusterJob& job) { return job.gathers() || job.scatters(); });
    DriveAll(random, jobs, ranks, 4'000'000);
    ExpectSameBits(ranks, jobs, seed);
  }
}

// Scaled results have the bits of those that are scaled behind.
TEST(SliceExchange, ScalesWhatHasComeBack) {
  Cluster cluster(2, 2);
  std::vector<std::unique_ptr<ClusterRank>> ranks;
  for (int32_t r = 0; r < 4; ++r) ranks.push_back(std::make_unique<ClusterRank>(cluster, r));
  const ClusterJob plain{DataType::kBfloat16, ReduceOp::kSum, 5003, 1.0, false, ~0u, 3};
  std::vector<ClusterJob> jobs = {plain, plain, plain};
  jobs[1].scale = jobs[2].scale = 1.0 / 3;
  jobs[2].mapped = 0;
  for (size_t i = 0; i < 3; ++i) {
    jobs.push_back(jobs[i]);
    jobs.back().kind = CollectiveKind::kReduce;
    jobs.back().root = 3;
  }
  std::mt19937 random(1);
  DriveAll(random, jobs, ranks, 1'000'000);
  for (const auto& rank : ranks) {
    ASSERT_TRUE(rank->Done(jobs));
    ASSERT_EQ(rank->results().size(), jobs.size());
    for (size_t i = 0; i < jobs.size(); i += 3) {
      Bytes expected = rank->results()[i];
      Scale(plain.dtype, jobs[1].scale, expected.data(), static_cast<int64_t>(expected.size()) / 2);
      EXPECT_TRUE(SameBytes(rank->results()[i + 1], expected));
      EXPECT_TRUE(SameBytes(rank->results()[i + 2], expected));
    }
  }
}

// Everybody ends, and nothing is under way then that would touch its buffers later.
TEST(SliceExchange, TheEndOfARankAtAnyMomentEndsItOnAll) {
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    std::mt19937 random(seed);
    // Every fifth time of different sizes.
    const bool uneven = seed % 5 == 0;
    Cluster cluster(uneven ? std::vector<int32_t>{1, 3} : std::vector<int32_t>(2 + seed % 2, 2));
    std::vector<std::unique_ptr<ClusterRank>> ranks;
    for (int32_t r = 0; r < cluster.size; ++r)
      ranks.push_back(std::make_unique<ClusterRank>(cluster, r));
    std::vector<ClusterJob> jobs = {
        {DataType::kFloat32, ReduceOp::kSum, 20011, 1.0, true, seed % 3 == 0 ? 0u : ~0u, 1}};
    if (seed % 3 == 1) {
      jobs[0].kind = CollectiveKind::kReduce;
      jobs[0].root = static_cast<int32_t>(random() % static_cast<uint32_t>(cluster.size));
    }
    if (seed % 4 >= 2 && !uneven) {
      jobs[0].count = 5003;
      jobs[0].kind = seed % 4 == 2 ? CollectiveKind::kAllgather : CollectiveKind::kReducescatter;
    }
    DriveAll(random, jobs, ranks, static_cast<int64_t>(random() % 2000));
    const size_t victim = random() % ranks.size();
    ranks[victim]->GoAway();
    ranks.erase(ranks.begin() + static_cast<std::ptrdiff_t>(victim));
    DriveAll(random, jobs, ranks, 500);
    ExpectAllEnd(ranks, jobs, seed);
  }
}

// Of blocks that travel as several messages of a step.
TEST(SliceExchange, TheEndOfARankInRacksEndsItOnAll) {
  for (uint32_t seed = 1; seed <= 30; ++seed) {
    std::mt19937 random(seed);
    Cluster cluster(4, 2);
    cluster.grid = {{2, 2}, {}};
    std::vector<std::unique_ptr<ClusterRank>> ranks;
    for (int32_t r = 0; r < cluster.size; ++r)
      ranks.push_back(std::make_unique<ClusterRank>(cluster, r));
    std::vector<ClusterJob> jobs = {
        {DataType::kFloat32, ReduceOp::kSum, 2003, 1.0, true, seed % 3 == 0 ? 0u : ~0u, 1}};
    jobs[0].kind = seed % 2 == 0 ? CollectiveKind::kAllgather : CollectiveKind::kReducescatter;
    DriveAll(random, jobs, ranks, static_cast<int64_t>(random() % 2000));
    const size_t victim = random() % ranks.size();
    ranks[victim]->GoAway();
    ranks.erase(ranks.begin() + static_cast<std::ptrdiff_t>(victim));
    DriveAll(random, jobs, ranks, 500);
    ExpectAllEnd(ranks, jobs, seed);
  }
}

}  // namespace
}  // namespace coordd
