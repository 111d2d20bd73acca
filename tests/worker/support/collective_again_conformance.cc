// What every CollectiveBackend must do with collectives that say the same again, whether a rank
// launches them or executes them at once, to the end or for a while.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <thread>

#include "common/base/thread.h"
#include "tests/worker/support/collective_backend_conformance.h"
#include "worker/interfaces/peer_status.h"

namespace coordd {
namespace {

constexpr int kToItsEnd = std::numeric_limits<int>::max();

// At once for so many turns in which nothing happens, then as if it were launched.
absl::Status RunAgainFor(BackendContext& context, const CollectiveArgs& args, int turns) {
  std::optional<absl::Status> result;
  bool is_launched = false;
  const auto goes_on = [&](bool moved) {
    if (!moved) std::this_thread::yield();
    return moved || turns == kToItsEnd || turns-- > 0;
  };
  const auto launched = [&]() -> CollectiveBackend::Done {
    is_launched = true;
    return [&](absl::Status status) { result = std::move(status); };
  };
  std::optional<absl::Status> ended = context.object.RunAgain(args, goes_on, launched);
  if (ended.has_value()) {
    EXPECT_FALSE(is_launched);
    return *std::move(ended);
  }
  if (!is_launched) return RunCollective(context, args);
  if (!context.DriveUntil([&] { return result.has_value(); })) {
    context.object.Abort();
    context.destroy();
  }
  return *result;
}

// One collective of each kind, with what each rank has for it and gets from it.
struct Said {
  CollectiveArgs args;
  Bytes input, output, expected;
};

Said SayAllreduce(BackendContext& context, int64_t count, int32_t round) {
  Said said;
  said.input = TestInput(DataType::kInt64, ToInt(context.rank), count, round);
  said.output.resize(said.input.size());
  said.args = AllreduceArgs(DataType::kInt64, ReduceOp::kSum, said.input, said.output);
  const std::vector<Bytes> inputs = AllInputs(DataType::kInt64, context.world_size, count, round);
  said.expected.resize(said.input.size());
  for (size_t at = 0; at < said.expected.size(); at += sizeof(int64_t)) {
    uint64_t sum = 0;
    for (const Bytes& input : inputs) {
      uint64_t one = 0;
      std::memcpy(&one, input.data() + at, sizeof(one));
      sum += one;
    }
    std::memcpy(said.expected.data() + at, &sum, sizeof(sum));
  }
  return said;
}

Said SayBroadcast(BackendContext& context, int64_t count, int32_t round) {
  Said said;
  said.args.kind = CollectiveKind::kBroadcast;
  said.args.dtype = DataType::kInt64;
  said.args.root = Rank{context.world_size / 2};
  said.expected = TestInput(DataType::kInt64, 0, count, round);
  said.output = said.expected;
  if (context.rank != said.args.root)
    std::fill(said.output.begin(), said.output.end(), std::byte{});
  said.args.output = absl::MakeSpan(said.output);
  return said;
}

// With blocks of different sizes, which are others with another count.
Said SayAllgather(BackendContext& context, int64_t count, int32_t round) {
  Said said;
  said.args.kind = CollectiveKind::kAllgather;
  said.args.dtype = DataType::kInt64;
  for (int32_t r = 0; r < context.world_size; ++r) {
    const Bytes block = TestInput(DataType::kInt64, r, count + r, round);
    said.args.output_block_bytes.push_back(static_cast<int64_t>(block.size()));
    said.expected.insert(said.expected.end(), block.begin(), block.end());
  }
  said.input = TestInput(DataType::kInt64, ToInt(context.rank), count + ToInt(context.rank), round);
  said.output.resize(said.expected.size());
  said.args.input = said.input;
  said.args.output = absl::MakeSpan(said.output);
  return said;
}

using Say = Said (*)(BackendContext&, int64_t count, int32_t round);
constexpr Say kSays[] = {SayAllreduce, SayBroadcast, SayAllgather};

}  // namespace

TEST_P(CollectiveBackendConformance, DoesTheSameAgainAtOnceOrNot) {
  InEveryWorld([&](BackendContext& context) {
    Sequence sequence;
    for (const Say say : kSays) {
      for (const int64_t count : {int64_t{1}, int64_t{500}, int64_t{3}, int64_t{9000}}) {
        for (int32_t round = 0; round < 4; ++round) {
          Said said = say(context, count, round);
          const CollectiveArgs args = sequence.Number(said.args);
          const int way = (ToInt(context.rank) + round) % 3;
          const absl::Status status = way == 0   ? RunCollective(context, args)
                                      : way == 1 ? RunAgainFor(context, args, kToItsEnd)
                                                 : RunAgainFor(context, args, round);
          ASSERT_EQ(status, absl::OkStatus());
          EXPECT_EQ(said.output, said.expected) << Name(args.kind) << " of " << count;
        }
      }
    }
  });
}

// Each of them is another than the one before.
TEST_P(CollectiveBackendConformance, TakesNothingElseForTheSame) {
  InEveryWorld([&](BackendContext& context) {
    Sequence sequence;
    for (int32_t round = 0; round < 4; ++round) {
      for (const int64_t count : {int64_t{4}, int64_t{5}}) {
        for (const Say say : kSays) {
          Said said = say(context, count, round);
          ASSERT_EQ(RunAgainFor(context, sequence.Number(said.args), kToItsEnd), absl::OkStatus());
          EXPECT_EQ(said.output, said.expected);
        }
      }
      const Bytes input = TestInput(DataType::kInt32, ToInt(context.rank), 8, round);
      for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
        Bytes output(input.size());
        ASSERT_EQ(RunAgainFor(context,
                              sequence.Number(AllreduceArgs(DataType::kInt32, op, input, output)),
                              kToItsEnd),
                  absl::OkStatus());
        EXPECT_EQ(CheckReduced(DataType::kInt32, op,
                               AllInputs(DataType::kInt32, context.world_size, 8, round),
                               output.data(), 8),
                  "");
      }
    }
  });
}

TEST_P(CollectiveBackendConformance, BlamesThePeerThatGoesAwayWhileItIsDoneAgain) {
  if (!GetParam().blames_lost_peers) GTEST_SKIP() << "this backend is told by coordd who is gone";
  if (!HasPeers()) GTEST_SKIP() << "one rank has no peers";
  for (const int turns : {0, 5, kToItsEnd}) {
    RunRanks<CollectiveBackend>(GetParam(), 2, [&](BackendContext& context) {
      Sequence sequence;
      for (int32_t round = 0; round < 2; ++round) {
        Said said = SayAllreduce(context, 10, round);
        ASSERT_EQ(RunCollective(context, sequence.Number(said.args)), absl::OkStatus());
      }
      context.barrier.arrive_and_wait();
      if (context.rank == Rank{1}) return context.destroy();
      for (int32_t round = 2; round < 4; ++round) {
        Said said = SayAllreduce(context, 10, round);
        const absl::Status status = RunAgainFor(context, sequence.Number(said.args), turns);
        EXPECT_TRUE(absl::IsUnavailable(status)) << status;
        EXPECT_EQ(SuspectRank(status), Rank{1}) << status;
      }
    });
  }
}

TEST_P(CollectiveBackendConformance, AbortEndsWhatIsDoneAgain) {
  if (!HasPeers()) GTEST_SKIP() << "one rank waits for nobody";
  RunRanks<CollectiveBackend>(GetParam(), 2, [&](BackendContext& context) {
    Sequence sequence;
    Said first = SayAllreduce(context, 10, 0);
    ASSERT_EQ(RunCollective(context, sequence.Number(first.args)), absl::OkStatus());
    if (context.rank == Rank{1}) {
      context.barrier.arrive_and_wait();
      return;
    }
    std::thread other = StartThread("abort", [&] { context.object.Abort(); });
    Said again = SayAllreduce(context, 10, 1);
    const absl::Status status = RunAgainFor(context, sequence.Number(again.args), kToItsEnd);
    EXPECT_TRUE(absl::IsAborted(status)) << status;
    other.join();
    context.barrier.arrive_and_wait();
  });
}

}  // namespace coordd
