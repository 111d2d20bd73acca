#include "tests/worker/support/collective_backend_conformance.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>

#include "tests/worker/support/reference.h"
#include "worker/execute/fusion_layout.h"
#include "worker/interfaces/peer_status.h"
#include "worker/numeric/reduce_kernels.h"

namespace coordd {
namespace {

constexpr int64_t kCounts[] = {0, 1, 7, 1000, 100003};

// What an element becomes is the kernels' (reduce_kernels_test has each dtype with each operator at
// every alignment), and how large ones are cut depends on the dtype's size alone. So large ones
// have every dtype with one operator, and one dtype with every operator; small ones have each with
// each.
bool IsTried(int64_t count, DataType dtype, ReduceOp op) {
  return count <= 1000 || op == ReduceOp::kSum || dtype == DataType::kFloat32;
}

// Results of all ranks, for comparison on rank 0.
struct Shared {
  std::mutex mu;
  std::vector<Bytes> results = std::vector<Bytes>(8);
};

// Everything about one allreduce: value, equal bits on all ranks, in place like out of place.
void CheckAllreduce(BackendContext& context, Shared& shared, Sequence& sequence, DataType dtype,
                    ReduceOp op, int64_t count) {
  if (!context.object.Supports(MemoryKind::kHost, dtype, CollectiveKind::kAllreduce)) return;
  const size_t self = static_cast<size_t>(ToInt(context.rank));
  const Bytes input = TestInput(dtype, ToInt(context.rank), count, 1);
  const Bytes untouched = input;
  Bytes output(input.size());
  CollectiveArgs args = AllreduceArgs(dtype, op, input, output);
  ASSERT_EQ(RunCollective(context, sequence.Number(args)), absl::OkStatus());
  EXPECT_TRUE(SameBytes(input, untouched));

  Bytes in_place = input;
  args = AllreduceArgs(dtype, op, in_place, in_place);
  ASSERT_EQ(RunCollective(context, sequence.Number(args)), absl::OkStatus());
  // The same inputs again give the same bits.
  EXPECT_TRUE(SameBytes(in_place, output)) << Name(dtype) << " " << Name(op) << " " << count;

  shared.results[self] = output;
  context.barrier.arrive_and_wait();
  const Bytes& first = shared.results[0];
  EXPECT_TRUE(SameBytes(output, first))
      << "rank " << self << " has other bits than rank 0: " << Name(dtype) << " " << Name(op) << " "
      << count;
  if (self == 0) {
    const std::vector<Bytes> inputs = AllInputs(dtype, context.world_size, count, 1);
    EXPECT_EQ(CheckReduced(dtype, op, inputs, output.data(), count), "");
  }
  context.barrier.arrive_and_wait();
}

}  // namespace

TEST_P(CollectiveBackendConformance, AllreducesEveryDtypeAndOp) {
  Shared shared;
  InEveryWorld([&](BackendContext& context) {
    Sequence sequence;
    for (int64_t count : kCounts) {
      for (DataType dtype : kAllDataTypes) {
        if (LeavesOut(dtype, count)) continue;
        for (ReduceOp op : kAllReduceOps) {
          if (IsTried(count, dtype, op))
            CheckAllreduce(context, shared, sequence, dtype, op, count);
        }
      }
    }
  });
}

// A backend may multiply in passing, and says whether it has: the bits are those of a Scale behind.
TEST_P(CollectiveBackendConformance, ScalesInPassingToTheSameBits) {
  InEveryWorld([&](BackendContext& context) {
    Sequence sequence;
    for (int64_t count : {int64_t{1}, int64_t{1000}, int64_t{100003}, int64_t{3000017}}) {
      // What is multiplied past the caches has nothing to do with how many ranks there are.
      if (count > 1000000 && context.world_size > 4) continue;
      for (DataType dtype : {DataType::kFloat32, DataType::kFloat64, DataType::kBfloat16}) {
        if (!context.object.Supports(MemoryKind::kHost, dtype, CollectiveKind::kAllreduce) ||
            LeavesOut(dtype, count))
          continue;
        const Bytes input = TestInput(dtype, ToInt(context.rank), count, 5);
        Bytes plain(input.size()), scaled_output = input;
        CollectiveArgs args = AllreduceArgs(dtype, ReduceOp::kSum, input, plain);
        EXPECT_EQ(RunCollective(context, sequence.Number(args)), absl::OkStatus());
        bool scaled = false;
        args = AllreduceArgs(dtype, ReduceOp::kSum, scaled_output, scaled_output);  // in place
        args.scale = 1.0 / 3;
        args.scaled = &scaled;
        EXPECT_EQ(RunCollective(context, sequence.Number(args)), absl::OkStatus());
        if (scaled) Scale(dtype, args.scale, plain.data(), count);
        EXPECT_TRUE(SameBytes(scaled_output, plain)) << Name(dtype) << ", " << count;
      }
    }
  });
}

TEST_P(CollectiveBackendConformance, ReduceScattersEveryDtypeAndOp) {
  InEveryWorld([&](BackendContext& context) {
    Sequence sequence;
    auto check = [&](DataType dtype, ReduceOp op, int64_t rows) {
      if (!context.object.Supports(MemoryKind::kHost, dtype, CollectiveKind::kReducescatter))
        return;
      const int32_t self = ToInt(context.rank);
      const int64_t row_bytes = SizeOf(dtype) * 3;
      CollectiveArgs args;
      args.kind = CollectiveKind::kReducescatter;
      args.dtype = dtype;
      args.op = op;
      for (int32_t r = 0; r < context.world_size; ++r)
        args.input_block_bytes.push_back(SplitRows(rows, context.world_size, r).rows * row_bytes);
      const std::vector<Bytes> inputs = AllInputs(dtype, context.world_size, rows * 3, 2);
      Bytes input = inputs[static_cast<size_t>(self)];
      const RowRange own = SplitRows(rows, context.world_size, self);
      Bytes output(static_cast<size_t>(own.rows * row_bytes));
      args.input = input;
      args.output = absl::MakeSpan(output);
      ASSERT_EQ(RunCollective(context, sequence.Number(args)), absl::OkStatus());
      std::vector<Bytes> parts;
      for (const Bytes& whole : inputs) {
        parts.emplace_back(whole.begin() + own.first * row_bytes,
                           whole.begin() + (own.first + own.rows) * row_bytes);
      }
      EXPECT_EQ(CheckReduced(dtype, op, parts, output.data(), own.rows * 3), "");
      EXPECT_TRUE(SameBytes(input, inputs[static_cast<size_t>(self)]));
      // In place: the result takes its own rows' place.
      args.output =
          absl::MakeSpan(input).subspan(static_cast<size_t>(own.first * row_bytes), output.size());
      ASSERT_EQ(RunCollective(context, sequence.Number(args)), absl::OkStatus());
      EXPECT_TRUE(output.empty() ||
                  std::memcmp(args.output.data(), output.data(), output.size()) == 0);
    };
    for (int64_t rows : {0, 1, 7, 1000}) {
      for (DataType dtype : kAllDataTypes) {
        for (ReduceOp op : kAllReduceOps) check(dtype, op, rows);
      }
    }
    check(DataType::kFloat32, ReduceOp::kSum, 100003);
    check(DataType::kBfloat16, ReduceOp::kSum, 100003);
  });
}

TEST_P(CollectiveBackendConformance, BroadcastsFromEveryRoot) {
  InEveryWorld([&](BackendContext& context) {
    Sequence sequence;
    for (int64_t count : kCounts) {
      for (int32_t root = 0; root < context.world_size; ++root) {
        const Bytes expected = TestInput(DataType::kFloat64, root, count, 3);
        Bytes output = ToInt(context.rank) == root ? expected : Bytes(expected.size());
        CollectiveArgs args;
        args.kind = CollectiveKind::kBroadcast;
        args.dtype = DataType::kFloat64;
        args.root = Rank{root};
        args.output = absl::MakeSpan(output);
        ASSERT_EQ(RunCollective(context, sequence.Number(args)), absl::OkStatus());
        EXPECT_TRUE(SameBytes(output, expected)) << "root " << root << " count " << count;
      }
    }
  });
}

TEST_P(CollectiveBackendConformance, GathersRaggedBlocks) {
  InEveryWorld([&](BackendContext& context) {
    Sequence sequence;
    const size_t self = static_cast<size_t>(ToInt(context.rank));
    for (int64_t count : kCounts) {
      CollectiveArgs args;
      args.kind = CollectiveKind::kAllgather;
      args.dtype = DataType::kInt32;
      Bytes expected;
      int64_t own_offset = 0;
      for (int32_t r = 0; r < context.world_size; ++r) {
        // Every third rank has nothing to give.
        const Bytes block = TestInput(DataType::kInt32, r, r % 3 == 2 ? 0 : count + r, 4);
        if (r == ToInt(context.rank)) own_offset = static_cast<int64_t>(expected.size());
        args.output_block_bytes.push_back(static_cast<int64_t>(block.size()));
        expected.insert(expected.end(), block.begin(), block.end());
      }
      const size_t own_bytes = static_cast<size_t>(args.output_block_bytes[self]);
      const Bytes input(expected.begin() + own_offset,
                        expected.begin() + own_offset + static_cast<int64_t>(own_bytes));
      Bytes output(expected.size());
      args.input = input;
      args.output = absl::MakeSpan(output);
      ASSERT_EQ(RunCollective(context, sequence.Number(args)), absl::OkStatus());
      EXPECT_TRUE(SameBytes(output, expected)) << "count " << count;

      Bytes in_place(expected.size());
      std::copy(input.begin(), input.end(), in_place.begin() + own_offset);
      args.output = absl::MakeSpan(in_place);
      args.input = args.output.subspan(static_cast<size_t>(own_offset), own_bytes);
      ASSERT_EQ(RunCollective(context, sequence.Number(args)), absl::OkStatus());
      EXPECT_TRUE(SameBytes(in_place, expected)) << "in place, count " << count;
    }
  });
}

TEST_P(CollectiveBackendConformance, ExchangesRaggedBlocksAllToAll) {
  InEveryWorld([&](BackendContext& context) {
    Sequence sequence;
    const int32_t size = context.world_size;
    // What `from` has for `to`: some pairs have nothing.
    auto block = [&](int32_t from, int32_t to, int64_t count) {
      const int64_t elements = (from + to) % 4 == 3 ? 0 : count / size + from + 2 * to;
      return TestInput(DataType::kInt16, from * 8 + to, elements, 5);
    };
    for (int64_t count : kCounts) {
      CollectiveArgs args;
      args.kind = CollectiveKind::kAlltoall;
      args.dtype = DataType::kInt16;
      Bytes input;
      Bytes expected;
      for (int32_t r = 0; r < size; ++r) {
        const Bytes to = block(ToInt(context.rank), r, count);
        args.input_block_bytes.push_back(static_cast<int64_t>(to.size()));
        input.insert(input.end(), to.begin(), to.end());
        const Bytes from = block(r, ToInt(context.rank), count);
        args.output_block_bytes.push_back(static_cast<int64_t>(from.size()));
        expected.insert(expected.end(), from.begin(), from.end());
      }
      Bytes output(expected.size());
      args.input = input;
      args.output = absl::MakeSpan(output);
      ASSERT_EQ(RunCollective(context, sequence.Number(args)), absl::OkStatus());
      EXPECT_TRUE(SameBytes(output, expected)) << "count " << count;
    }
  });
}

TEST_P(CollectiveBackendConformance, NobodyPassesABarrierBeforeAllHaveReachedIt) {
  std::atomic<int32_t> arrived = 0;
  InEveryWorld([&](BackendContext& context) {
    Sequence sequence;
    if (context.rank == Rank{0}) arrived = 0;
    context.barrier.arrive_and_wait();
    for (int32_t round = 1; round <= 10; ++round) {
      ++arrived;
      CollectiveArgs args;
      args.kind = CollectiveKind::kBarrier;
      ASSERT_EQ(RunCollective(context, sequence.Number(args)), absl::OkStatus());
      EXPECT_GE(arrived.load(), round * context.world_size);
    }
  });
}

TEST_P(CollectiveBackendConformance, WaitsForWhoComesLate) {
  if (!GetParam().lanes_are_independent) GTEST_SKIP() << "a launch of this backend may block";
  InEveryWorld([&](BackendContext& context) {
    Sequence sequence;
    for (const int64_t count : {int64_t{5}, int64_t{100003}}) {
      const std::vector<Bytes> inputs =
          AllInputs(DataType::kFloat32, context.world_size, count, static_cast<int32_t>(count));
      const Bytes& own = inputs[static_cast<size_t>(ToInt(context.rank))];
      for (int32_t late = 0; late < context.world_size; ++late) {
        Bytes output(own.size());
        std::optional<absl::Status> result;
        auto launch = [&] {
          const CollectiveArgs args =
              sequence.Number(AllreduceArgs(DataType::kFloat32, ReduceOp::kSum, own, output));
          ASSERT_TRUE(
              context.object.Launch(args, [&](absl::Status status) { result = status; }).ok());
        };
        if (ToInt(context.rank) != late) {
          launch();
          for (int i = 0; i < 1000; ++i) context.object.Progress();
          EXPECT_FALSE(result.has_value());
        }
        context.barrier.arrive_and_wait();
        if (ToInt(context.rank) == late) launch();
        ASSERT_TRUE(context.DriveUntil([&] { return result.has_value(); }));
        ASSERT_EQ(*result, absl::OkStatus());
        EXPECT_EQ(CheckReduced(DataType::kFloat32, ReduceOp::kSum, inputs, output.data(), count),
                  "");
      }
    }
  });
}

TEST_P(CollectiveBackendConformance, LanesDoNotWaitForEachOther) {
  if (!GetParam().lanes_are_independent) GTEST_SKIP() << "all lanes of this backend share an order";
  InEveryWorld([&](BackendContext& context) {
    // Even ranks launch the slow lane first, odd ones last, and half of them launch it only when
    // the other lane is through.
    constexpr int64_t kLarge = 300000;
    const int32_t self = ToInt(context.rank);
    std::vector<Bytes> large = AllInputs(DataType::kInt32, context.world_size, kLarge, 6);
    std::vector<Bytes> small = AllInputs(DataType::kInt64, context.world_size, 5, 7);
    Bytes large_out(large[0].size());
    Bytes small_out(small[0].size());
    int32_t done = 0;
    auto launch = [&](LaneId lane, DataType dtype, const Bytes& in, Bytes& out) {
      CollectiveArgs args = AllreduceArgs(dtype, ReduceOp::kSum, in, out);
      args.lane = lane;
      args.sequence = 1;
      ASSERT_TRUE(context.object
                      .Launch(args,
                              [&](absl::Status status) {
                                EXPECT_TRUE(status.ok()) << status;
                                ++done;
                              })
                      .ok());
    };
    const Bytes& own_large = large[static_cast<size_t>(self)];
    const Bytes& own_small = small[static_cast<size_t>(self)];
    if (self % 2 == 0) launch(LaneId{0}, DataType::kInt32, own_large, large_out);
    launch(LaneId{3}, DataType::kInt64, own_small, small_out);
    if (self % 2 == 1) {
      context.DriveUntil([&] { return done == 1; });
      launch(LaneId{0}, DataType::kInt32, own_large, large_out);
    }
    context.DriveUntil([&] { return done == 2; });
    EXPECT_EQ(CheckReduced(DataType::kInt32, ReduceOp::kSum, large, large_out.data(), kLarge), "");
    EXPECT_EQ(CheckReduced(DataType::kInt64, ReduceOp::kSum, small, small_out.data(), 5), "");
  });
}

TEST_P(CollectiveBackendConformance, RunsManyBatchesOfALaneInTheirOrder) {
  InEveryWorld([&](BackendContext& context) {
    constexpr int32_t kBatches = 200;
    std::vector<int32_t> order;
    std::vector<Bytes> buffers;
    for (int32_t i = 0; i < kBatches; ++i)
      buffers.push_back(TestInput(DataType::kInt32, ToInt(context.rank), 10 + i, i));
    for (int32_t i = 0; i < kBatches; ++i) {
      Bytes& buffer = buffers[static_cast<size_t>(i)];
      CollectiveArgs args = AllreduceArgs(DataType::kInt32, ReduceOp::kMax, buffer, buffer);
      args.sequence = i + 1;
      ASSERT_TRUE(context.object
                      .Launch(args,
                              [&order, i](absl::Status status) {
                                EXPECT_TRUE(status.ok()) << status;
                                order.push_back(i);
                              })
                      .ok());
    }
    context.DriveUntil([&] { return order.size() == kBatches; });
    EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
    for (int32_t i = 0; i < kBatches; ++i) {
      const std::vector<Bytes> inputs = AllInputs(DataType::kInt32, context.world_size, 10 + i, i);
      EXPECT_EQ(CheckReduced(DataType::kInt32, ReduceOp::kMax, inputs,
                             buffers[static_cast<size_t>(i)].data(), 10 + i),
                "");
    }
  });
}

TEST_P(CollectiveBackendConformance, AllocatesAlignedFusionBuffers) {
  InEveryWorld([&](BackendContext& context) {
    const auto first = context.object.AllocateFusionBuffer(1000);
    const auto second = context.object.AllocateFusionBuffer(int64_t{1} << 20);
    ASSERT_TRUE(first.ok() && second.ok());
    EXPECT_EQ(first->size(), 1000u);
    EXPECT_EQ(second->size(), size_t{1} << 20);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(first->data()) % 64, 0u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(second->data()) % 64, 0u);
  });
}

TEST_P(CollectiveBackendConformance, RefusesArgumentsThatContradictEachOther) {
  RunRanks<CollectiveBackend>(GetParam(), 1, [&](BackendContext& context) {
    const Bytes input(12);
    Bytes output(8);
    auto never = [](absl::Status) { ADD_FAILURE() << "done was called"; };
    auto refused = [&](const CollectiveArgs& args) {
      return absl::IsInvalidArgument(context.object.Launch(args, never));
    };
    CollectiveArgs args = AllreduceArgs(DataType::kFloat32, ReduceOp::kSum, input, output);
    EXPECT_TRUE(refused(args));  // sizes differ
    args = AllreduceArgs(DataType::kFloat64, ReduceOp::kSum, input, output);
    args.input = args.input.subspan(0, 7);
    args.output = args.output.subspan(0, 7);
    EXPECT_TRUE(refused(args));  // no whole elements
    args = AllreduceArgs(DataType::kUint8, ReduceOp::kAverage, output, output);
    EXPECT_TRUE(refused(args));  // averages are the executor's
    Bytes both(16);
    args = AllreduceArgs(DataType::kUint8, ReduceOp::kSum, both, both);
    args.input = args.input.subspan(0, 8);
    args.output = args.output.subspan(4, 8);
    EXPECT_TRUE(refused(args));  // half overlap
    args = CollectiveArgs();
    args.kind = CollectiveKind::kBroadcast;
    args.root = Rank{1};
    EXPECT_TRUE(refused(args));
    args.kind = CollectiveKind::kAllgather;
    EXPECT_TRUE(refused(args));  // no blocks given
    args.kind = CollectiveKind::kBarrier;
    args.input = input;
    EXPECT_TRUE(refused(args));
  });
}

TEST_P(CollectiveBackendConformance, AbortEndsWhatRunsAndWhatComesLater) {
  if (!HasPeers()) GTEST_SKIP() << "one rank never waits";
  RunRanks<CollectiveBackend>(GetParam(), 3, [&](BackendContext& context) {
    // Rank 2 never launches, so the others cannot finish.
    if (context.rank == Rank{2}) return;
    Bytes buffer = TestInput(DataType::kFloat32, ToInt(context.rank), 1000000, 8);
    std::vector<absl::Status> ended;
    auto record = [&](absl::Status status) { ended.push_back(std::move(status)); };
    CollectiveArgs args = AllreduceArgs(DataType::kFloat32, ReduceOp::kSum, buffer, buffer);
    args.sequence = 1;
    ASSERT_TRUE(context.object.Launch(args, record).ok());
    for (int i = 0; i < 1000; ++i) context.object.Progress();
    EXPECT_TRUE(ended.empty());
    std::thread aborter = StartThread("aborter", [&] { context.object.Abort(); });
    aborter.join();
    context.DriveUntil([&] { return ended.size() == 1; });
    args.sequence = 2;
    ASSERT_TRUE(context.object.Launch(args, record).ok());
    context.DriveUntil([&] { return ended.size() == 2; });
    EXPECT_TRUE(absl::IsAborted(ended[0])) << ended[0];
    EXPECT_TRUE(absl::IsAborted(ended[1])) << ended[1];
  });
}

TEST_P(CollectiveBackendConformance, EndsWhatIsPendingWhenItIsDestroyed) {
  if (!HasPeers()) GTEST_SKIP() << "one rank never waits";
  RunRanks<CollectiveBackend>(GetParam(), 2, [&](BackendContext& context) {
    if (context.rank == Rank{1}) return;
    Bytes buffer = TestInput(DataType::kFloat32, 0, 1000000, 8);
    std::vector<absl::Status> ended;
    for (int i = 1; i <= 2; ++i) {
      CollectiveArgs args = AllreduceArgs(DataType::kFloat32, ReduceOp::kSum, buffer, buffer);
      args.sequence = i;
      ASSERT_TRUE(
          context.object.Launch(args, [&](absl::Status s) { ended.push_back(std::move(s)); }).ok());
    }
    for (int i = 0; i < 100; ++i) context.object.Progress();
    context.destroy();
    ASSERT_EQ(ended.size(), 2u);
    EXPECT_TRUE(absl::IsAborted(ended[0])) << ended[0];
    EXPECT_TRUE(absl::IsAborted(ended[1])) << ended[1];
  });
}

TEST_P(CollectiveBackendConformance, BlamesThePeerThatGoesAwayNowAndLater) {
  if (!GetParam().blames_lost_peers) GTEST_SKIP() << "this backend is told by coordd who is gone";
  if (!HasPeers()) GTEST_SKIP() << "one rank has no peers";
  RunRanks<CollectiveBackend>(GetParam(), 2, [&](BackendContext& context) {
    // Both have talked before, so they are connected.
    Sequence sequence;
    Bytes small(8);
    ASSERT_EQ(RunCollective(context, sequence.Number(AllreduceArgs(DataType::kInt64, ReduceOp::kSum,
                                                                   small, small))),
              absl::OkStatus());
    if (context.rank == Rank{1}) {
      context.barrier.arrive_and_wait();
      context.destroy();
      return;
    }
    Bytes buffer = TestInput(DataType::kFloat32, 0, 1000000, 8);
    std::vector<absl::Status> ended;
    auto launch = [&] {
      ASSERT_TRUE(context.object
                      .Launch(sequence.Number(AllreduceArgs(DataType::kFloat32, ReduceOp::kSum,
                                                            buffer, buffer)),
                              [&](absl::Status status) { ended.push_back(std::move(status)); })
                      .ok());
    };
    launch();
    for (int i = 0; i < 100; ++i) context.object.Progress();
    context.barrier.arrive_and_wait();
    context.DriveUntil([&] { return ended.size() == 1; });
    launch();
    context.DriveUntil([&] { return ended.size() == 2; });
    for (const absl::Status& status : ended) {
      EXPECT_TRUE(absl::IsUnavailable(status)) << status;
      EXPECT_EQ(SuspectRank(status), Rank{1}) << status;
    }
  });
}

}  // namespace coordd
