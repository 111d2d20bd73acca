// What every CollectiveBackend must do for groups of ranks, and for results that are for one rank.
#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>

#include "tests/worker/support/collective_backend_conformance.h"
#include "worker/execute/fusion_layout.h"

namespace coordd {
namespace {

// By tree up to 16 KiB, scattered and gathered beyond.
constexpr int64_t kCounts[] = {0, 1, 7, 1000, 20011};

// Two groups that overlap: the even ranks, and all but the first. Of one rank: itself, twice.
std::vector<std::vector<Rank>> TwoGroups(int32_t world_size) {
  std::vector<std::vector<Rank>> groups(2);
  for (int32_t r = 0; r < world_size; ++r) {
    if (r % 2 == 0) groups[0].push_back(Rank{r});
    if (r > 0 || world_size == 1) groups[1].push_back(Rank{r});
  }
  return groups;
}

std::vector<Bytes> InputsOf(const std::vector<Rank>& group, DataType dtype, int64_t count,
                            int32_t salt) {
  std::vector<Bytes> inputs;
  for (Rank rank : group) inputs.push_back(TestInput(dtype, ToInt(rank), count, salt));
  return inputs;
}

// What is under way at one time, each with buffers of its own.
class Company {
 public:
  explicit Company(BackendContext& context) : context_(context) {}

  void Launch(CollectiveArgs args) {
    ++launched_;
    const absl::Status status = context_.object.Launch(std::move(args), [this](absl::Status ended) {
      EXPECT_TRUE(ended.ok()) << ended;
      ++done_;
    });
    EXPECT_TRUE(status.ok()) << status;
  }
  void Await() {
    context_.DriveUntil([this] { return done_ == launched_; });
  }

 private:
  BackendContext& context_;
  int done_ = 0, launched_ = 0;
};

CollectiveArgs InGroup(int32_t group, int64_t sequence, CollectiveArgs args) {
  args.group = ProcessSetId{group};
  args.lane = LaneId{group};
  args.sequence = sequence;
  return args;
}

// An allreduce, an allgather and a broadcast in one group, launched together.
class GroupRound {
 public:
  GroupRound(int32_t number, std::vector<Rank> members, Rank self)
      : number_(number), members_(std::move(members)) {
    const std::vector<Bytes> mine = InputsOf({self}, DataType::kFloat32, kElements, number);
    sum_ = part_ = mine[0];
    value_.resize(sum_.size());
    const Rank root = members_.back();
    if (self == root) value_ = mine[0];
    gathered_.resize(sum_.size() * members_.size());
  }

  void Launch(Company& company) {
    company.Launch(
        InGroup(number_, 1, AllreduceArgs(DataType::kFloat32, ReduceOp::kMax, sum_, sum_)));
    CollectiveArgs gather;
    gather.kind = CollectiveKind::kAllgather;
    gather.dtype = DataType::kFloat32;
    gather.output_block_bytes.assign(members_.size(), static_cast<int64_t>(part_.size()));
    gather.input = part_;
    gather.output = absl::MakeSpan(gathered_);
    company.Launch(InGroup(number_, 2, gather));
    CollectiveArgs broadcast;
    broadcast.kind = CollectiveKind::kBroadcast;
    broadcast.dtype = DataType::kFloat32;
    broadcast.root = Rank{static_cast<int32_t>(members_.size()) - 1};  // by index in the group
    broadcast.output = absl::MakeSpan(value_);
    company.Launch(InGroup(number_, 3, broadcast));
    company.Launch(InGroup(number_, 4, CollectiveArgs()));
  }

  void Check() const {
    const std::vector<Bytes> inputs = InputsOf(members_, DataType::kFloat32, kElements, number_);
    EXPECT_EQ(CheckReduced(DataType::kFloat32, ReduceOp::kMax, inputs, sum_.data(), kElements), "");
    EXPECT_TRUE(SameBytes(value_, inputs.back()));
    Bytes all;
    for (const Bytes& input : inputs) all.insert(all.end(), input.begin(), input.end());
    EXPECT_TRUE(SameBytes(gathered_, all));
  }

 private:
  static constexpr int64_t kElements = 5003;
  int32_t number_;
  std::vector<Rank> members_;
  Bytes sum_, part_, value_, gathered_;
};

}  // namespace

TEST_P(CollectiveBackendConformance, GroupsThatOverlapDoNotWaitForEachOther) {
  InEveryWorld([&](BackendContext& context) {
    const std::vector<std::vector<Rank>> groups = TwoGroups(context.world_size);
    std::vector<GroupRound> rounds;
    for (int32_t g = 0; g < 2; ++g) {
      const std::vector<Rank>& members = groups[static_cast<size_t>(g)];
      if (std::find(members.begin(), members.end(), context.rank) == members.end()) continue;
      ASSERT_TRUE(context.object.DefineGroup(ProcessSetId{g + 1}, members).ok());
      rounds.emplace_back(g + 1, members, context.rank);
    }
    // Every second rank in the other order: no order between groups is agreed on.
    if (GetParam().lanes_are_independent && ToInt(context.rank) % 4 >= 2)
      std::reverse(rounds.begin(), rounds.end());
    Company company(context);
    for (GroupRound& round : rounds) round.Launch(company);
    // The group of all ranks goes on in the meantime.
    Bytes all = TestInput(DataType::kInt64, ToInt(context.rank), 9, 3);
    company.Launch(InGroup(0, 1, AllreduceArgs(DataType::kInt64, ReduceOp::kSum, all, all)));
    company.Await();
    for (const GroupRound& round : rounds) round.Check();
    EXPECT_EQ(CheckReduced(DataType::kInt64, ReduceOp::kSum,
                           AllInputs(DataType::kInt64, context.world_size, 9, 3), all.data(), 9),
              "");
    context.barrier.arrive_and_wait();
    for (int32_t g = 0; g < 2; ++g) context.object.EndGroup(ProcessSetId{g + 1});
  });
}

TEST_P(CollectiveBackendConformance, RefusesGroupsThatAreNone) {
  RunRanks<CollectiveBackend>(GetParam(), 1, [&](BackendContext& context) {
    auto refused = [&](int32_t group, std::vector<Rank> ranks) {
      return absl::IsInvalidArgument(context.object.DefineGroup(ProcessSetId{group}, ranks));
    };
    EXPECT_TRUE(refused(0, {Rank{0}}));
    EXPECT_TRUE(refused(1, {}));
    EXPECT_TRUE(refused(1, {Rank{0}, Rank{0}}));
    EXPECT_TRUE(refused(1, {Rank{0}, Rank{1}}));
    EXPECT_TRUE(refused(1, {Rank{-1}, Rank{0}}));
  });
}

TEST_P(CollectiveBackendConformance, ReducesForTheRootOnly) {
  InEveryWorld([&](BackendContext& context) {
    Sequence sequence;
    auto check = [&](DataType dtype, ReduceOp op, int64_t count, int32_t root) {
      if (!context.object.Supports(MemoryKind::kHost, dtype, CollectiveKind::kReduce)) return;
      const std::vector<Bytes> inputs = AllInputs(dtype, context.world_size, count, 9);
      Bytes input = inputs[static_cast<size_t>(ToInt(context.rank))];
      const bool is_root = ToInt(context.rank) == root;
      Bytes output(is_root ? input.size() : 0);
      CollectiveArgs args = AllreduceArgs(dtype, op, input, output);
      args.kind = CollectiveKind::kReduce;
      args.root = Rank{root};
      ASSERT_EQ(RunCollective(context, sequence.Number(args)), absl::OkStatus());
      EXPECT_TRUE(SameBytes(input, inputs[static_cast<size_t>(ToInt(context.rank))]));
      if (is_root) {
        EXPECT_EQ(CheckReduced(dtype, op, inputs, output.data(), count), "");
        args.output = absl::MakeSpan(input);  // in place
      }
      ASSERT_EQ(RunCollective(context, sequence.Number(args)), absl::OkStatus());
      EXPECT_TRUE(!is_root || SameBytes(input, output));
    };
    for (int64_t count : kCounts) {
      for (int32_t root = 0; root < context.world_size; ++root) {
        check(DataType::kFloat64, ReduceOp::kSum, count, root);
        check(DataType::kUint16, ReduceOp::kMin, count, root);
      }
    }
    for (DataType dtype : kAllDataTypes) {
      for (ReduceOp op : kAllReduceOps) check(dtype, op, 33, context.world_size / 2);
    }
  });
}

TEST_P(CollectiveBackendConformance, GathersRaggedBlocksForTheRootOnly) {
  InEveryWorld([&](BackendContext& context) {
    Sequence sequence;
    for (int64_t count : kCounts) {
      for (int32_t root = 0; root < context.world_size; ++root) {
        const bool is_root = ToInt(context.rank) == root;
        CollectiveArgs args;
        args.kind = CollectiveKind::kGather;
        args.dtype = DataType::kUint32;
        args.root = Rank{root};
        Bytes expected, input;
        for (int32_t r = 0; r < context.world_size; ++r) {
          const Bytes block = TestInput(DataType::kUint32, r, r % 3 == 2 ? 0 : count + r, 4);
          if (r == ToInt(context.rank)) input = block;
          if (!is_root) continue;
          args.output_block_bytes.push_back(static_cast<int64_t>(block.size()));
          expected.insert(expected.end(), block.begin(), block.end());
        }
        Bytes output(expected.size());
        args.input = input;
        args.output = absl::MakeSpan(output);
        ASSERT_EQ(RunCollective(context, sequence.Number(args)), absl::OkStatus());
        EXPECT_TRUE(SameBytes(output, expected)) << "root " << root << " count " << count;
      }
    }
  });
}

}  // namespace coordd
