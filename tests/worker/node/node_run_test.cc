// Collectives on mapped memory, with all members in one thread: the test chooses who goes on, a few
// bytes at a time, so that members are in different steps and in different collectives.
#include "worker/node/node_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "common/base/thread.h"
#include "tests/worker/support/mapped_memories.h"
#include "tests/worker/support/reference.h"
#include "worker/execute/fusion_layout.h"

namespace coordd {
namespace {

// Behind the board.
constexpr int64_t kBuffersAt = int64_t{67} << 20;
constexpr NodeRunOptions kTinyPieces = {.inline_bytes_max = 64,
                                        .staging = {.buffer_bytes = 1024, .broadcast_bytes = 128},
                                        .pull_bytes_max = 5000,
                                        .stream_bytes_min = 3000,
                                        .work_bytes_max = 192};

// Memory of the members, each beginning with a board.
class Node {
 public:
  explicit Node(int32_t members) : memories_(members) {}
  std::unique_ptr<NodeLane> Lane(LaneId lane, int32_t self) const {
    return std::make_unique<NodeLane>(lane, memories_.all(), self);
  }
  const std::vector<NodeMemory>& memories() const { return memories_.all(); }

 private:
  MappedMemories memories_;
};

// What one collective is about, the same for all members.
struct Job {
  CollectiveKind kind;
  DataType dtype;
  ReduceOp op;
  int32_t root;
  int64_t count;
  bool in_place;
  uint32_t mapped;  // bits: which members' buffers are
  int64_t sequence;
  uint32_t parts = 0;  // bits: which members have the buffers of an allreduce in several runs
};

// A member that works through the jobs and checks each result.
class Member {
 public:
  Member(const Node& node, int32_t self)
      : self_(self), members_(static_cast<int32_t>(node.memories().size())), node_(node) {
    lane_ = node.Lane(LaneId{7}, self);
  }

  bool Done(const std::vector<Job>& jobs) const { return next_ == jobs.size() && run_ == nullptr; }

  void Advance(const std::vector<Job>& jobs) {
    if (run_ == nullptr) {
      if (next_ == jobs.size()) return;
      Begin(jobs[next_++]);
    }
    run_->Advance();
    if (!run_->finished()) return;
    ASSERT_EQ(run_->status(), absl::OkStatus());
    for (const OutputPart& part : args_.output_parts)
      std::copy(part.bytes.begin(), part.bytes.end(), output_.begin() + part.offset_bytes);
    Check();
    // Nobody reads or writes them any more.
    std::fill(input_.begin(), input_.end(), std::byte{0xEE});
    std::fill(output_.begin(), output_.end(), std::byte{0xEE});
    run_.reset();
  }

 private:
  // Blocks of `from` for `to`, for the kinds that have some.
  int64_t BlockCount(int32_t from, int32_t to) const {
    return (from + 2 * to) % 4 == 3 ? 0 : job_.count / members_ + from + to;
  }
  Bytes InputOf(int32_t member) const {
    int64_t count = job_.count;
    if (job_.kind == CollectiveKind::kAlltoall) {
      count = 0;
      for (int32_t to = 0; to < members_; ++to) count += BlockCount(member, to);
    } else if (job_.kind == CollectiveKind::kGather || job_.kind == CollectiveKind::kAllgather) {
      count = BlockCount(member, 0);
    }
    return TestInput(job_.dtype, member, count, static_cast<int32_t>(job_.sequence));
  }

  // Buffers in the arena or on the heap.
  absl::Span<std::byte> Place(bool mapped, Bytes& heap, int64_t arena_offset, size_t size) {
    heap.assign(mapped ? 0 : size, std::byte{0});
    if (!mapped) return absl::MakeSpan(heap);
    return node_.memories()[static_cast<size_t>(self_)].subspan(static_cast<size_t>(arena_offset),
                                                                size);
  }

  void Begin(const Job& job) {
    job_ = job;
    const bool mapped = (job.mapped >> self_ & 1) != 0;
    const bool is_root = self_ == job.root;
    const Bytes value = InputOf(self_);
    const int64_t element = SizeOf(job.dtype);
    args_ = CollectiveArgs();
    args_.kind = job.kind;
    args_.dtype = job.dtype;
    args_.op = job.op;
    args_.root = Rank{job.root};
    args_.sequence = job.sequence;
    size_t output_bytes = value.size();
    int64_t own_offset = 0;  // of the output in the input, or the other way round
    if (job.kind == CollectiveKind::kReducescatter) {
      for (int32_t m = 0; m < members_; ++m) {
        const RowRange rows = SplitRows(job.count, members_, m);
        args_.input_block_bytes.push_back(rows.rows * element);
        if (m < self_) own_offset += rows.rows * element;
      }
      output_bytes = static_cast<size_t>(args_.input_block_bytes[static_cast<size_t>(self_)]);
    } else if (job.kind == CollectiveKind::kReduce) {
      output_bytes = is_root ? value.size() : 0;
    } else if (job.kind == CollectiveKind::kAllgather ||
               (job.kind == CollectiveKind::kGather && is_root)) {
      output_bytes = 0;
      for (int32_t m = 0; m < members_; ++m) {
        args_.output_block_bytes.push_back(BlockCount(m, 0) * element);
        if (m < self_) own_offset += args_.output_block_bytes.back();
        output_bytes += static_cast<size_t>(args_.output_block_bytes.back());
      }
    } else if (job.kind == CollectiveKind::kGather) {
      output_bytes = 0;
    } else if (job.kind == CollectiveKind::kAlltoall) {
      output_bytes = 0;
      for (int32_t m = 0; m < members_; ++m) {
        args_.input_block_bytes.push_back(BlockCount(self_, m) * element);
        args_.output_block_bytes.push_back(BlockCount(m, self_) * element);
        output_bytes += static_cast<size_t>(args_.output_block_bytes.back());
      }
    }
    constexpr int64_t kInputAt = kBuffersAt;
    constexpr int64_t kOutputAt = kInputAt + (int64_t{1} << 19);
    const bool larger_output = output_bytes > value.size();
    const bool in_place = job.in_place && job.kind != CollectiveKind::kAlltoall &&
                          job.kind != CollectiveKind::kBroadcast && output_bytes > 0;
    if (in_place && larger_output) {
      output_ = Place(mapped, output_heap_, kOutputAt, output_bytes);
      input_ = output_.subspan(static_cast<size_t>(own_offset), value.size());
    } else {
      input_ = Place(mapped, input_heap_, kInputAt, value.size());
      output_ = in_place ? input_.subspan(static_cast<size_t>(own_offset), output_bytes)
                         : Place(mapped, output_heap_, kOutputAt, output_bytes);
    }
    std::copy(value.begin(), value.end(), input_.begin());
    args_.input = input_;
    args_.output = output_;
    if (job.kind == CollectiveKind::kBroadcast) {
      if (is_root) std::copy(value.begin(), value.end(), output_.begin());
      args_.input = {};
    }
    CutIntoParts(in_place);
    const int64_t staging_bytes = NodeCollectiveRun::StagingBytes(args_, *lane_, kTinyPieces);
    const auto staging = node_.memories()[static_cast<size_t>(self_)].subspan(
        static_cast<size_t>(kInputAt) - 65536, static_cast<size_t>(staging_bytes));
    run_ = std::make_unique<NodeCollectiveRun>(args_, *lane_, staging, kTinyPieces);
  }

  // If the job says so, runs of a length of this member's own, each in memory of its own.
  void CutIntoParts(bool in_place) {
    parts_.clear();
    if (job_.kind != CollectiveKind::kAllreduce || (job_.parts >> self_ & 1) == 0) return;
    if (NodeInlineRun::Fits(args_, members_, kTinyPieces.inline_bytes_max)) return;
    const size_t run = static_cast<size_t>(SizeOf(job_.dtype) * (3 + 50 * self_));
    for (size_t at = 0; at < input_.size(); at += run) {
      const auto bytes = input_.subspan(at, run);
      Bytes& input = parts_.emplace_back(bytes.begin(), bytes.end());
      args_.input_parts.push_back({static_cast<int64_t>(at), absl::MakeConstSpan(input)});
      Bytes& output = in_place ? input : parts_.emplace_back(bytes.size());
      args_.output_parts.push_back({static_cast<int64_t>(at), absl::MakeSpan(output)});
    }
    args_.input = {nullptr, input_.size()};
    args_.output = {nullptr, output_.size()};
  }

  std::vector<Bytes> Inputs() const {
    std::vector<Bytes> inputs;
    for (int32_t m = 0; m < members_; ++m) inputs.push_back(InputOf(m));
    return inputs;
  }

  void Check() {
    const std::vector<Bytes> inputs = Inputs();
    const int64_t element = SizeOf(job_.dtype);
    Bytes expected;
    switch (job_.kind) {
      case CollectiveKind::kAllreduce:
      case CollectiveKind::kReduce:
        if (output_.empty()) return;
        EXPECT_EQ(CheckReduced(job_.dtype, job_.op, inputs, output_.data(), job_.count), "");
        return;
      case CollectiveKind::kReducescatter: {
        const RowRange rows = SplitRows(job_.count, members_, self_);
        std::vector<Bytes> parts;
        for (const Bytes& whole : inputs) {
          parts.emplace_back(whole.begin() + rows.first * element,
                             whole.begin() + (rows.first + rows.rows) * element);
        }
        EXPECT_EQ(CheckReduced(job_.dtype, job_.op, parts, output_.data(), rows.rows), "");
        return;
      }
      case CollectiveKind::kBroadcast:
        expected = inputs[static_cast<size_t>(job_.root)];
        break;
      case CollectiveKind::kAlltoall:
        for (int32_t from = 0; from < members_; ++from) {
          const Bytes& whole = inputs[static_cast<size_t>(from)];
          int64_t begin = 0;
          for (int32_t to = 0; to < self_; ++to) begin += BlockCount(from, to) * element;
          expected.insert(expected.end(), whole.begin() + begin,
                          whole.begin() + begin + BlockCount(from, self_) * element);
        }
        break;
      default:
        if (output_.empty()) return;
        for (const Bytes& input : inputs)
          expected.insert(expected.end(), input.begin(), input.end());
    }
    ASSERT_EQ(output_.size(), expected.size());
    EXPECT_TRUE(expected.empty() ||
                std::memcmp(output_.data(), expected.data(), expected.size()) == 0)
        << Name(job_.kind) << " of " << job_.count << " on member " << self_ << " of " << members_;
  }

  const int32_t self_, members_;
  const Node& node_;
  std::unique_ptr<NodeLane> lane_;
  size_t next_ = 0;
  Job job_ = {};
  CollectiveArgs args_;
  Bytes input_heap_, output_heap_;
  std::deque<Bytes> parts_;
  absl::Span<std::byte> input_, output_;
  std::unique_ptr<NodeCollectiveRun> run_;
};

constexpr CollectiveKind kKinds[] = {CollectiveKind::kAllreduce, CollectiveKind::kReducescatter,
                                     CollectiveKind::kBroadcast, CollectiveKind::kAllgather,
                                     CollectiveKind::kAlltoall,  CollectiveKind::kReduce,
                                     CollectiveKind::kGather,    CollectiveKind::kBarrier};

std::vector<Job> RandomJobs(std::mt19937& random, int32_t members, int32_t number) {
  constexpr int64_t kCounts[] = {0, 1, 5, 17, 130, 1001, 5003};
  std::vector<Job> jobs;
  for (int32_t i = 0; i < number; ++i) {
    Job job{kKinds[random() % 8],
            DataType::kFloat32,
            ReduceOp::kSum,
            static_cast<int32_t>(random()) % members,
            kCounts[random() % std::size(kCounts)],
            random() % 2 == 0,
            0,
            i + 1};
    job.root = (job.root + members) % members;
    if (random() % 3 == 0) job.dtype = DataType::kBfloat16;
    // All, none, or some of the members have their buffers mapped.
    const uint32_t some = static_cast<uint32_t>(random());
    job.mapped = random() % 3 == 0 ? ~0u : random() % 2 == 0 ? 0u : some;
    if (job.kind == CollectiveKind::kBarrier) job.count = 0;
    if (random() % 2 == 0) job.parts = static_cast<uint32_t>(random());
    jobs.push_back(job);
  }
  return jobs;
}

TEST(NodeCollectiveRun, EveryCollectiveInEveryOrderOfSteps) {
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    std::mt19937 random(seed);
    const int32_t members = 2 + static_cast<int32_t>(seed % 4);
    const Node node(members);
    std::vector<std::unique_ptr<Member>> ranks;
    for (int32_t m = 0; m < members; ++m) ranks.push_back(std::make_unique<Member>(node, m));
    const std::vector<Job> jobs = RandomJobs(random, members, 40);
    int64_t left = 2'000'000;
    auto all_done = [&] {
      return std::all_of(ranks.begin(), ranks.end(), [&](auto& rank) { return rank->Done(jobs); });
    };
    while (!all_done() && --left > 0) {
      // Often the same one for a while.
      Member& member = *ranks[random() % ranks.size()];
      for (uint32_t i = random() % 8; i > 0; --i) member.Advance(jobs);
    }
    ASSERT_GT(left, 0) << "hangs with seed " << seed;
  }
}

// Under ThreadSanitizer: nobody reads what is not said to be there.
TEST(NodeCollectiveRun, EveryCollectiveBetweenThreads) {
  for (uint32_t seed = 1; seed <= 6; ++seed) {
    std::mt19937 random(seed);
    const int32_t members = 2 + static_cast<int32_t>(seed % 2);
    const Node node(members);
    const std::vector<Job> jobs = RandomJobs(random, members, 100);
    std::vector<std::thread> threads;
    for (int32_t m = 0; m < members; ++m) {
      threads.push_back(StartThread("member", [&, m] {
        Member member(node, m);
        while (!member.Done(jobs)) {
          member.Advance(jobs);
          std::this_thread::yield();
        }
      }));
    }
    for (std::thread& thread : threads) thread.join();
  }
}

// As tensors lie in a fused buffer: what is between them is nobody's, also where a member has it in
// one run.
TEST(NodeCollectiveRun, NobodyTouchesWhatIsBetweenParts) {
  constexpr int64_t kOffsets[] = {0, 1024, 1088, 2048};
  constexpr int64_t kCounts[] = {200, 3, 90, 400};
  constexpr size_t kWhole = 4096;
  const Node node(2);
  std::vector<std::vector<float>> memory(2, std::vector<float>(kWhole / 4, -1.0f));
  std::vector<CollectiveArgs> args(2);
  std::vector<std::unique_ptr<NodeLane>> lanes;
  std::vector<std::unique_ptr<NodeCollectiveRun>> runs;
  for (int32_t m = 0; m < 2; ++m) {
    CollectiveArgs& own = args[static_cast<size_t>(m)];
    own.kind = CollectiveKind::kAllreduce;
    own.dtype = DataType::kFloat32;
    own.op = ReduceOp::kSum;
    const auto bytes =
        absl::MakeSpan(reinterpret_cast<std::byte*>(memory[static_cast<size_t>(m)].data()), kWhole);
    for (size_t t = 0; t < 4; ++t) {
      const auto part = bytes.subspan(static_cast<size_t>(kOffsets[t]),
                                      static_cast<size_t>(kCounts[t]) * sizeof(float));
      for (int64_t i = 0; i < kCounts[t]; ++i)
        memory[static_cast<size_t>(m)][static_cast<size_t>(kOffsets[t] / 4 + i)] =
            static_cast<float>(m + 1 + i);
      if (m == 1) continue;
      own.input_parts.push_back({kOffsets[t], part});
      own.output_parts.push_back({kOffsets[t], part});
    }
    own.input = own.output = bytes;
    if (m == 0) own.input = own.output = absl::Span<std::byte>(nullptr, kWhole);
    lanes.push_back(node.Lane(LaneId{1}, m));
    runs.push_back(std::make_unique<NodeCollectiveRun>(
        own, *lanes.back(),
        node.memories()[static_cast<size_t>(m)].subspan(
            kBuffersAt, static_cast<size_t>(NodeCollectiveRun::MaxStagingBytes(kTinyPieces))),
        kTinyPieces));
  }
  for (int i = 0; i < 1000 && !(runs[0]->finished() && runs[1]->finished()); ++i)
    for (auto& run : runs) run->Advance();
  for (size_t m = 0; m < 2; ++m) {
    ASSERT_TRUE(runs[m]->finished());
    size_t t = 0;
    for (int64_t at = 0; at < static_cast<int64_t>(kWhole) / 4; ++at) {
      while (t < 4 && at >= kOffsets[t] / 4 + kCounts[t]) ++t;
      const int64_t i = t < 4 ? at - kOffsets[t] / 4 : -1;
      const float found = memory[m][static_cast<size_t>(at)];
      if (i < 0 && m == 1) continue;  // packed: nobody minds what is there
      EXPECT_EQ(found, i >= 0 ? static_cast<float>(3 + 2 * i) : -1.0f) << at;
    }
  }
}

TEST(BufferParts, ARunEndsWithItsPartAndWhatIsBetweenIsNobodys) {
  std::byte memory[100] = {};
  const std::vector<OutputPart> parts = {{10, absl::MakeSpan(memory, 20)},
                                         {30, absl::MakeSpan(memory + 50, 5)},
                                         {64, absl::MakeSpan(memory + 60, 30)}};
  const absl::Span<std::byte> whole(nullptr, 128);
  auto run = [&](int64_t at) {
    const BufferRun<std::byte> found = RunAt<std::byte>(whole, parts, at);
    const int64_t place = found.data == nullptr ? -1 : found.data - memory;
    return std::pair<int64_t, int64_t>(place, found.size_bytes);
  };
  using Found = std::pair<int64_t, int64_t>;
  EXPECT_EQ(run(0), (Found{-1, 10}));
  EXPECT_EQ(run(10), (Found{0, 20}));
  EXPECT_EQ(run(29), (Found{19, 1}));
  EXPECT_EQ(run(30), (Found{50, 5}));
  EXPECT_EQ(run(35), (Found{-1, 29}));
  EXPECT_EQ(run(70), (Found{66, 24}));
  EXPECT_EQ(run(94), (Found{-1, 34}));
  const BufferRun<std::byte> one = RunAt<std::byte>(absl::MakeSpan(memory), {}, 40);
  EXPECT_EQ(one.data, memory + 40);
  EXPECT_EQ(one.size_bytes, 60);
}

TEST(NodeCollectiveRun, SaysWhomItWaitsForAndWhoIsElsewhere) {
  const Node node(2);
  const std::unique_ptr<NodeLane> lane0 = node.Lane(LaneId{1}, 0);
  std::vector<float> value(1000, 1.0f);
  CollectiveArgs args;
  args.kind = CollectiveKind::kAllreduce;
  args.dtype = DataType::kFloat32;
  args.op = ReduceOp::kSum;
  args.sequence = 5;
  args.input = args.output =
      absl::MakeSpan(reinterpret_cast<std::byte*>(value.data()), value.size() * 4);
  const absl::Span<std::byte> staging =
      node.memories()[0].subspan(kBuffersAt, NodeCollectiveRun::MaxStagingBytes(kTinyPieces));
  NodeCollectiveRun first(args, *lane0, staging, kTinyPieces);
  first.Advance();
  EXPECT_TRUE(first.WaitsFor(1));  // it has not come to the lane yet
  const std::unique_ptr<NodeLane> lane1 = node.Lane(LaneId{1}, 1);
  CollectiveArgs other = args;
  other.sequence = 6;
  NodeCollectiveRun second(other, *lane1, node.memories()[1].subspan(kBuffersAt, staging.size()),
                           kTinyPieces);
  while (!first.finished() || !second.finished()) {
    first.Advance();
    second.Advance();
  }
  EXPECT_TRUE(absl::IsInternal(first.status())) << first.status();
  EXPECT_TRUE(absl::IsInternal(second.status())) << second.status();
}

TEST(NodeLane, GivesItsEntryBackOnceAllAreThrough) {
  const Node node(2);
  for (int32_t round = 0; round < 2 * NodeBoard::kEntries; ++round) {
    const std::unique_ptr<NodeLane> lane0 = node.Lane(LaneId{round}, 0);
    const std::unique_ptr<NodeLane> lane1 = node.Lane(LaneId{round}, 1);
    ASSERT_TRUE(lane0->claimed() && lane1->claimed());
    CollectiveArgs args;
    NodeCollectiveRun first(args, *lane0, {}, {});
    NodeCollectiveRun second(args, *lane1, {}, {});
    first.Advance();
    second.Advance();
    first.Advance();
    ASSERT_TRUE(first.finished());
    if (!second.finished()) {
      EXPECT_FALSE(lane0->Release());
      second.Advance();
    }
    ASSERT_TRUE(second.finished());
    EXPECT_TRUE(lane1->Release());
    EXPECT_TRUE(lane0->Release());
  }
}

TEST(NodeBoard, SaysWhenItIsFull) {
  const Node node(1);
  for (int32_t lane = 0; lane < NodeBoard::kEntries; ++lane)
    ASSERT_TRUE(node.Lane(LaneId{lane}, 0)->claimed());
  EXPECT_FALSE(node.Lane(LaneId{NodeBoard::kEntries}, 0)->claimed());
}

}  // namespace
}  // namespace coordd
