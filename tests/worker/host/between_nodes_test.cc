// Collectives by leaders and alltoalls between nodes, with all ranks in one thread: the test
// chooses who goes on.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "tests/worker/support/cluster.h"
#include "tests/worker/support/reference.h"
#include "worker/base/aligned_buffer.h"
#include "worker/host/alltoall_run.h"
#include "worker/host/leader_run.h"
#include "worker/numeric/reduce_kernels.h"

namespace coordd {
namespace {

const NodeRunOptions kSmallSteps = {
    .inline_bytes_max = 1024,
    .staging = {.buffer_bytes = 1024, .broadcast_bytes = 128, .exchange_bytes = 1024},
    .work_bytes_max = 448};
constexpr RunOptions kSmallSegments = {.segment_bytes = 192};

struct BetweenJob {
  CollectiveKind kind;
  DataType dtype = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int64_t count = 0;
  int32_t root = 0;
  double scale = 1.0;
  bool in_place = false;
  uint32_t mapped = 0;  // bits: which ranks' buffers are; of an alltoall
  int64_t sequence = 1;

  // Of an allgather what `from` has, of an alltoall for `to`: some have nothing.
  int64_t BlockCount(int32_t from, int32_t to) const {
    return (from + 2 * to + sequence) % 4 == 3 ? 0 : count + from % 3 + 2 * to % 5;
  }
};

// A rank that works through the jobs.
class BetweenRank {
  // With what runs.
  template <typename Function>
  auto With(Function function) {
    return leader_run_ != nullptr ? function(*leader_run_) : function(*alltoall_run_);
  }

 public:
  BetweenRank(Cluster& cluster, int32_t rank)
      : cluster_(cluster), rank_(rank), node_(cluster.NodeOf(rank)) {
    if (OnNode() > 1) {
      lane_ =
          std::make_unique<NodeLane>(LaneId{7}, cluster.MemoriesOf(node_), cluster.NumberOf(rank));
    }
  }

  bool Done(const std::vector<BetweenJob>& jobs) const {
    return !status_.ok() || (next_ == jobs.size() && !is_running());
  }
  const absl::Status& status() const { return status_; }
  const std::vector<Bytes>& results() const { return results_; }
  bool is_running() const { return leader_run_ != nullptr || alltoall_run_ != nullptr; }
  bool WaitsFor(int32_t member) {
    return With([&](auto& run) { return run.WaitsFor(member); });
  }
  // As HostBackend does.
  void Abort() {
    transport().Abort();
    if (is_running()) With([](auto& run) { run.Fail(absl::AbortedError("aborted")); });
  }
  // As a process that dies, but for its memory.
  void GoAway() { cluster_.transports[static_cast<size_t>(rank_)].reset(); }

  void Advance(const std::vector<BetweenJob>& jobs) {
    if (Done(jobs)) return;
    transport().Progress();
    if (!is_running()) Begin(jobs[next_++]);
    With([](auto& run) { run.Advance(); });
    if (!With([](auto& run) { return run.finished(); })) return;
    status_ = With([](auto& run) { return run.status(); });
    leader_run_.reset();
    alltoall_run_.reset();
    if (status_.ok()) Check();
    // Nobody looks at it any more.
    if (!job_.in_place) std::fill(input_.begin(), input_.end(), std::byte{0xEE});
  }

 private:
  InProcessTransport& transport() { return *cluster_.transports[static_cast<size_t>(rank_)]; }
  int32_t OnNode() const { return cluster_.members[static_cast<size_t>(node_)]; }
  bool is_alltoall() const { return job_.kind == CollectiveKind::kAlltoall; }
  int64_t BlockBytes(int32_t from, int32_t to) const {
    return job_.BlockCount(from, to) * SizeOf(job_.dtype);
  }
  // What a rank has: of an alltoall the blocks for all.
  Bytes InputOf(int32_t rank) const {
    int64_t count = job_.count;
    if (job_.kind == CollectiveKind::kAllgather) count = job_.BlockCount(rank, 0);
    for (int32_t to = 0; is_alltoall() && to < cluster_.size; ++to)
      count += to == 0 ? job_.BlockCount(rank, to) - count : job_.BlockCount(rank, to);
    return TestInput(job_.dtype, rank, count, static_cast<int32_t>(job_.sequence));
  }
  absl::Span<std::byte> Place(Bytes& heap, int64_t number, size_t size) {
    const bool mapped = lane_ != nullptr && is_alltoall() && (job_.mapped >> rank_ & 1) != 0;
    heap.assign(mapped ? 0 : size, std::byte{0});
    if (!mapped) return absl::MakeSpan(heap);
    return lane_->memory(lane_->self())
        .subspan(static_cast<size_t>(Cluster::kBoardRoom + number * Cluster::kBufferRoom), size);
  }

  void Begin(const BetweenJob& job) {
    job_ = job;
    const Bytes value = InputOf(rank_);
    args_ = CollectiveArgs();
    args_.kind = job.kind;
    args_.dtype = job.dtype;
    args_.op = job.op;
    args_.root = Rank{job.root};
    args_.lane = LaneId{7};
    args_.sequence = job.sequence;
    args_.scale = job.scale;
    args_.scaled = job.scale == 1.0 ? nullptr : &scaled_;
    size_t output_bytes = value.size(), own_offset = 0;
    if (job.kind == CollectiveKind::kReduce && rank_ != job.root) output_bytes = 0;
    if (job.kind == CollectiveKind::kAllgather || is_alltoall()) {
      output_bytes = 0;
      for (int32_t r = 0; r < cluster_.size; ++r) {
        if (r == rank_) own_offset = output_bytes;
        if (is_alltoall()) args_.input_block_bytes.push_back(BlockBytes(rank_, r));
        args_.output_block_bytes.push_back(BlockBytes(r, is_alltoall() ? rank_ : 0));
        output_bytes += static_cast<size_t>(args_.output_block_bytes.back());
      }
    }
    output_ = Place(output_heap_, 2, output_bytes);
    const bool in_place = job.in_place && !is_alltoall() && output_bytes > 0;
    job_.in_place = in_place || job.kind == CollectiveKind::kBroadcast;
    input_ =
        job_.in_place
            ? output_.subspan(job.kind == CollectiveKind::kAllgather ? own_offset : 0, value.size())
            : Place(input_heap_, 1, value.size());
    if (job.kind != CollectiveKind::kBroadcast || rank_ == job.root)
      std::copy(value.begin(), value.end(), input_.begin());
    if (job.kind != CollectiveKind::kBroadcast) args_.input = input_;
    args_.output = output_;
    if (is_alltoall()) {
      BeginAlltoall();
    } else {
      BeginByLeaders();
    }
  }

  void BeginAlltoall() {
    const NodeRanks node{cluster_.FirstOf(node_), OnNode()};
    absl::Span<std::byte> staging;
    if (lane_ != nullptr) {
      const int64_t staging_bytes =
          NodeCollectiveRun::StagingBytes(AlltoallRun::Within(args_, node), *lane_, kSmallSteps);
      staging = lane_->memory(lane_->self())
                    .subspan(static_cast<size_t>(Cluster::kBoardRoom),
                             static_cast<size_t>(staging_bytes));
    }
    alltoall_run_ =
        std::make_unique<AlltoallRun>(args_, node, Rank{rank_}, lane_.get(), staging, kSmallSteps,
                                      kSmallSegments, transport(), RunMembers{});
  }

  void BeginByLeaders() {
    ASSERT_TRUE(LeaderRun::Fits(args_, kSmallSteps.inline_bytes_max));
    NodeLeaders leaders;
    leaders.node = node_;
    for (int32_t node = 0; node < cluster_.nodes; ++node) {
      leaders.ranks.push_back(Rank{cluster_.FirstOf(node)});
      leaders.members.push_back(cluster_.members[static_cast<size_t>(node)]);
    }
    if (job_.kind == CollectiveKind::kReduce || job_.kind == CollectiveKind::kBroadcast) {
      leaders.root_node = cluster_.NodeOf(job_.root);
      leaders.ranks[static_cast<size_t>(leaders.root_node)] = args_.root;
      if (leaders.root_node == node_) leaders.leader = cluster_.NumberOf(job_.root);
    }
    leader_run_ = std::make_unique<LeaderRun>(args_, lane_.get(), std::move(leaders),
                                              kSmallSegments, transport());
    scratch_ = AlignedBuffer(std::max<int64_t>(64, leader_run_->scratch_bytes()));
    leader_run_->Begin(scratch_.span().first(static_cast<size_t>(leader_run_->scratch_bytes())));
  }

  Bytes Expected(const std::vector<Bytes>& inputs) const {
    Bytes expected;
    if (job_.kind == CollectiveKind::kBroadcast) return inputs[static_cast<size_t>(job_.root)];
    for (int32_t from = 0; from < cluster_.size; ++from) {
      const Bytes& input = inputs[static_cast<size_t>(from)];
      int64_t begin = 0, size = static_cast<int64_t>(input.size());
      for (int32_t to = 0; is_alltoall() && to < rank_; ++to) begin += BlockBytes(from, to);
      if (is_alltoall()) size = BlockBytes(from, rank_);
      expected.insert(expected.end(), input.begin() + begin, input.begin() + begin + size);
    }
    return expected;
  }

  void Check() {
    std::vector<Bytes> inputs;
    for (int32_t r = 0; r < cluster_.size; ++r) inputs.push_back(InputOf(r));
    const Bytes& own = inputs[static_cast<size_t>(rank_)];
    if (!job_.in_place) {
      EXPECT_TRUE(std::equal(input_.begin(), input_.end(), own.begin(), own.end()));
    }
    Bytes result(output_.begin(), output_.end());
    const bool reduces =
        job_.kind == CollectiveKind::kAllreduce || job_.kind == CollectiveKind::kReduce;
    if (!reduces && job_.kind != CollectiveKind::kBarrier) {
      EXPECT_TRUE(SameBytes(result, Expected(inputs))) << Name(job_.kind) << " rank " << rank_;
    } else if (job_.scale == 1.0 && !result.empty()) {
      EXPECT_EQ(CheckReduced(job_.dtype, job_.op, inputs, result.data(), job_.count), "");
    }
    results_.push_back(std::move(result));
  }

  Cluster& cluster_;
  const int32_t rank_, node_;
  std::unique_ptr<NodeLane> lane_;
  size_t next_ = 0;
  BetweenJob job_ = {};
  CollectiveArgs args_;
  bool scaled_ = false;
  Bytes input_heap_, output_heap_;
  absl::Span<std::byte> input_, output_;
  AlignedBuffer scratch_{64};
  std::unique_ptr<LeaderRun> leader_run_;
  std::unique_ptr<AlltoallRun> alltoall_run_;
  std::vector<Bytes> results_;
  absl::Status status_;
};

using BetweenRanks = std::vector<std::unique_ptr<BetweenRank>>;

BetweenRanks RanksOf(Cluster& cluster) {
  BetweenRanks ranks;
  for (int32_t r = 0; r < cluster.size; ++r)
    ranks.push_back(std::make_unique<BetweenRank>(cluster, r));
  return ranks;
}

std::vector<BetweenJob> RandomBetweenJobs(std::mt19937& random, int32_t size, int32_t number) {
  constexpr CollectiveKind kKinds[] = {CollectiveKind::kAllreduce, CollectiveKind::kReduce,
                                       CollectiveKind::kBroadcast, CollectiveKind::kAllgather,
                                       CollectiveKind::kBarrier,   CollectiveKind::kAlltoall};
  constexpr int64_t kCounts[] = {0, 1, 17, 100};
  std::vector<BetweenJob> jobs;
  for (int32_t i = 0; i < number; ++i) {
    BetweenJob job{kKinds[random() % std::size(kKinds)]};
    job.dtype = kAllDataTypes[random() % std::size(kAllDataTypes)];
    job.op = kAllReduceOps[random() % std::size(kAllReduceOps)];
    job.count = kCounts[random() % std::size(kCounts)];
    job.root = static_cast<int32_t>(random() % static_cast<uint32_t>(size));
    job.in_place = random() % 2 == 0;
    job.mapped = random() % 3 == 0 ? ~0u : static_cast<uint32_t>(random());
    job.sequence = i + 1;
    // All blocks of an allgather travel in one post; those of an alltoall have many pieces.
    if (job.kind == CollectiveKind::kAllgather) job.count = std::min<int64_t>(job.count, 12);
    if (job.kind == CollectiveKind::kBarrier) job.count = 0;
    if (job.kind == CollectiveKind::kAlltoall) job.count *= 17;
    jobs.push_back(job);
  }
  return jobs;
}

void DriveBetween(std::mt19937& random, const std::vector<BetweenJob>& jobs, BetweenRanks& ranks,
                  int64_t turns) {
  auto all_done = [&] {
    return std::all_of(ranks.begin(), ranks.end(), [&](auto& rank) { return rank->Done(jobs); });
  };
  for (; turns > 0 && !all_done(); --turns) {
    BetweenRank& member = *ranks[random() % ranks.size()];
    for (uint32_t i = random() % 8; i > 0; --i) member.Advance(jobs);
  }
}

const std::vector<int32_t> kClusters[] = {{2, 2},    {2, 1},    {1, 4},      {3, 2, 1},
                                          {2, 2, 2}, {1, 1, 2}, {1, 3, 2, 1}};

TEST(BetweenNodes, EveryCollectiveInEveryOrderOfSteps) {
  for (uint32_t seed = 1; seed <= 70; ++seed) {
    std::mt19937 random(seed);
    Cluster cluster(kClusters[seed % std::size(kClusters)]);
    BetweenRanks ranks = RanksOf(cluster);
    const std::vector<BetweenJob> jobs = RandomBetweenJobs(random, cluster.size, 40);
    DriveBetween(random, jobs, ranks, 2'000'000);
    for (const auto& rank : ranks) {
      ASSERT_TRUE(rank->Done(jobs)) << "hangs with seed " << seed;
      ASSERT_EQ(rank->status(), absl::OkStatus());
      for (size_t i = 0; i < jobs.size(); ++i) {
        if (jobs[i].kind == CollectiveKind::kAllreduce) {
          EXPECT_TRUE(SameBytes(rank->results()[i], ranks[0]->results()[i])) << "job " << i;
        }
      }
    }
  }
}

// Scaled results have the bits of those that are scaled behind.
TEST(BetweenNodes, LeadersScaleOnce) {
  for (const std::vector<int32_t>& nodes : kClusters) {
    Cluster cluster(nodes);
    BetweenRanks ranks = RanksOf(cluster);
    const int32_t root = cluster.size - 1;
    std::vector<BetweenJob> jobs;
    for (const CollectiveKind kind : {CollectiveKind::kAllreduce, CollectiveKind::kReduce}) {
      for (const double scale : {1.0, 1.0 / 3}) {
        jobs.push_back({kind, DataType::kBfloat16, ReduceOp::kSum, 100, root, scale});
      }
    }
    std::mt19937 random(1);
    DriveBetween(random, jobs, ranks, 1'000'000);
    for (const auto& rank : ranks) {
      ASSERT_TRUE(rank->Done(jobs));
      for (size_t i = 0; i < jobs.size(); i += 2) {
        Bytes expected = rank->results()[i];
        Scale(DataType::kBfloat16, jobs[i + 1].scale, expected.data(),
              static_cast<int64_t>(expected.size()) / 2);
        EXPECT_TRUE(SameBytes(rank->results()[i + 1], expected));
      }
    }
  }
}

TEST(BetweenNodes, NobodyPassesABarrierOfLeadersBeforeAllHaveReachedIt) {
  const std::vector<BetweenJob> jobs = {{CollectiveKind::kBarrier}};
  for (const std::vector<int32_t>& nodes : kClusters) {
    for (size_t late = 0;
         late < static_cast<size_t>(std::accumulate(nodes.begin(), nodes.end(), 0)); ++late) {
      Cluster cluster(nodes);
      BetweenRanks ranks = RanksOf(cluster);
      for (int32_t turn = 0; turn < 30; ++turn) {
        for (size_t r = 0; r < ranks.size(); ++r) {
          if (r != late) ranks[r]->Advance(jobs);
        }
      }
      for (const auto& rank : ranks) EXPECT_FALSE(rank->Done(jobs));
      std::mt19937 random(1);
      DriveBetween(random, jobs, ranks, 100'000);
      for (const auto& rank : ranks) ASSERT_TRUE(rank->Done(jobs));
    }
  }
}

TEST(BetweenNodes, SaysWhomItWaitsForInItsNode) {
  Cluster cluster(std::vector<int32_t>{3, 1});
  BetweenRanks ranks = RanksOf(cluster);
  const std::vector<BetweenJob> jobs = {{.kind = CollectiveKind::kAllreduce, .count = 5}};
  ranks[0]->Advance(jobs);
  EXPECT_TRUE(ranks[0]->WaitsFor(1));
  ranks[1]->Advance(jobs);
  ranks[2]->Advance(jobs);
  for (int turn = 0; turn < 3; ++turn)
    for (size_t r = 0; r < 3; ++r) ranks[r]->Advance(jobs);
  // The leader waits for the other node, its members for the leader.
  EXPECT_FALSE(ranks[0]->WaitsFor(1) || ranks[0]->WaitsFor(2));
  EXPECT_TRUE(ranks[1]->WaitsFor(0) && ranks[2]->WaitsFor(0));
  EXPECT_FALSE(ranks[1]->WaitsFor(2));
  std::mt19937 random(1);
  DriveBetween(random, jobs, ranks, 100'000);
  for (const auto& rank : ranks) EXPECT_TRUE(rank->Done(jobs) && rank->status().ok());
}

// Everybody ends, and nothing is under way then that would touch its buffers later.
TEST(BetweenNodes, TheEndOfARankAtAnyMomentEndsItOnAll) {
  for (uint32_t seed = 1; seed <= 140; ++seed) {
    std::mt19937 random(seed);
    Cluster cluster(kClusters[seed % std::size(kClusters)]);
    BetweenRanks ranks = RanksOf(cluster);
    const std::vector<BetweenJob> jobs = RandomBetweenJobs(random, cluster.size, 10);
    DriveBetween(random, jobs, ranks, static_cast<int64_t>(random() % 200));
    const size_t victim = random() % ranks.size();
    ranks[victim]->GoAway();
    ranks.erase(ranks.begin() + static_cast<std::ptrdiff_t>(victim));
    DriveBetween(random, jobs, ranks, 500);
    ExpectAllEnd(ranks, jobs, seed);
  }
}

}  // namespace
}  // namespace coordd
