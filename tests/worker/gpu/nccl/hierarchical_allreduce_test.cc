// Allreduces by NCCL within nodes and by the host between them, over the fake libraries.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/gpu/fake_gpu.h"
#include "tests/support/status_matchers.h"
#include "tests/worker/support/device_copies.h"
#include "tests/worker/support/hierarchical_ranks.h"
#include "tests/worker/support/in_process_transport.h"
#include "tests/worker/support/rank_group.h"
#include "tests/worker/support/reference.h"
#include "worker/interfaces/peer_status.h"

namespace coordd {
namespace {

using Context = RankContext<HierarchicalRank>;

class HierarchicalAllreduceTest : public testing::Test {
 protected:
  ~HierarchicalAllreduceTest() override {
    SetFakeNccl("call_polls", 1);
    SetFakeNccl("async_error", 0);
    EXPECT_EQ(TakeBrokenNcclRule(), "");
    EXPECT_EQ(FakeNcclLiveCommunicators(), 0);
    EXPECT_EQ(FakeCudaLiveObjects(), 0);
  }

  void RunRanksOf(int32_t nodes, int32_t ranks_per_node, int64_t chunk_bytes,
                  const std::function<void(Context&)>& body) {
    GroupCase<HierarchicalRank> group;
    group.new_group = [&](int32_t world_size) {
      auto runtime = OpenFakeGpus();
      auto network = std::make_shared<InProcessNetwork>(world_size);
      auto next_device = std::make_shared<std::atomic<int32_t>>(0);
      return [this, runtime, network, next_device, ranks_per_node, chunk_bytes] {
        NcclBackendOptions options;
        options.device = (*next_device)++;
        options.init_limit = absl::Minutes(2);
        options.exchange_limit = exchange_limit_;
        auto host = std::make_unique<HostBackend>(std::make_unique<InProcessTransport>(*network));
        return std::make_unique<HierarchicalRank>(
            HierarchicalRank::Options{ranks_per_node, chunk_bytes},
            std::make_unique<NcclBackend>(runtime, Clock::Real(), options), std::move(host));
      };
    };
    RunRanks<HierarchicalRank>(group, nodes * ranks_per_node, body);
  }

  absl::Duration exchange_limit_ = NcclBackendOptions().exchange_limit;

  // Device memory, which the fake lets a test read and write.
  struct Tensor {
    std::shared_ptr<NcclRuntime> runtime = OpenFakeGpus();
    DeviceMemory memory;
    int32_t device;
    Tensor(const Context& context, absl::Span<const std::byte> value)
        : memory(DeviceMemory::Allocate(*runtime->device, context.object.nccl().device(),
                                        static_cast<int64_t>(value.size()))
                     .value()),
          device(context.object.nccl().device()) {
      std::copy(value.begin(), value.end(), memory.data());
    }
    Bytes value() const { return Bytes(memory.span().begin(), memory.span().end()); }
  };
  static CollectiveArgs Allreduce(DataType dtype, ReduceOp op, const Tensor& input,
                                  Tensor& output) {
    CollectiveArgs args;
    args.kind = CollectiveKind::kAllreduce;
    args.dtype = dtype;
    args.op = op;
    args.memory = MemoryKind::kCuda;
    args.device = input.device;
    args.input = input.memory.span();
    args.output = output.memory.span();
    return args;
  }
  // By an allreduce; they are there afterwards.
  static void MakeCommunicators(Context& context, Tensor& tensor) {
    std::optional<absl::Status> ended;
    ASSERT_THAT(context.object.Launch(Allreduce(DataType::kFloat32, ReduceOp::kSum, tensor, tensor),
                                      [&](absl::Status status) { ended = std::move(status); }),
                IsOk());
    ASSERT_TRUE(context.DriveUntil([&] { return ended.has_value(); }));
    EXPECT_THAT(*ended, IsOk());
  }
  static std::vector<float> Ones(size_t count) { return std::vector<float>(count, 1.0f); }
  static absl::Span<const std::byte> AsBytes(const std::vector<float>& values) {
    return {reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(float)};
  }
};

TEST_F(HierarchicalAllreduceTest, EqualsTheReferenceForEveryShapeOfNodesAndCut) {
  SetFakeNccl("call_polls", 1);  // each call is pending for a while
  for (const auto& [nodes, ranks_per_node] :
       {std::pair(2, 2), std::pair(3, 2), std::pair(2, 3), std::pair(2, 4)}) {
    RunRanksOf(nodes, ranks_per_node, /*chunk_bytes=*/2048, [](Context& context) {
      for (DataType dtype : {DataType::kFloat16, DataType::kBfloat16, DataType::kInt32,
                             DataType::kBool, DataType::kFloat64}) {
        for (int64_t count : {0, 1, 5, 999, 20'000}) {
          for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
            std::vector<Bytes> inputs;
            for (int32_t r = 0; r < context.world_size; ++r)
              inputs.push_back(TestInput(dtype, r, count, static_cast<int32_t>(count)));
            const Bytes& own = inputs[static_cast<size_t>(ToInt(context.rank))];
            Tensor input(context, own), output(context, own);
            std::optional<absl::Status> ended;
            ASSERT_THAT(context.object.Launch(Allreduce(dtype, op, input, output),
                                              [&](absl::Status status) { ended = status; }),
                        IsOk());
            ASSERT_TRUE(context.DriveUntil([&] { return ended.has_value(); }));
            EXPECT_THAT(*ended, IsOk());
            const Bytes found = output.value();
            EXPECT_EQ(CheckReduced(dtype, op, inputs, found.data(), count), "");
            EXPECT_EQ(input.value(), own);
          }
        }
      }
    });
  }
}

TEST_F(HierarchicalAllreduceTest, MovesAPartOfTheBufferBetweenNodesOnEachRank) {
  RunRanksOf(2, 2, /*chunk_bytes=*/4096, [](Context& context) {
    const std::vector<float> ones = Ones(3000);
    Tensor tensor(context, AsBytes(ones));
    std::optional<absl::Status> ended;
    ASSERT_THAT(context.object.Launch(Allreduce(DataType::kFloat32, ReduceOp::kSum, tensor, tensor),
                                      [&](absl::Status status) { ended = status; }),
                IsOk());
    ASSERT_TRUE(context.DriveUntil([&] { return ended.has_value(); }));
    const Bytes sum = tensor.value();
    EXPECT_EQ(*reinterpret_cast<const float*>(sum.data() + sum.size() - 4), 4.0f);
    EXPECT_EQ(context.object.exchanges(), 3);  // chunks of 4096, 4096 and 3808 bytes
  });
}

// All of it is on the stream before any host has exchanged anything, in the order of the launches.
TEST_F(HierarchicalAllreduceTest, IsEnqueuedAsAWholeWhileNoHostMoves) {
  RunRanksOf(2, 2, /*chunk_bytes=*/2048, [](Context& context) {
    const std::vector<float> ones = Ones(2000);  // four chunks
    std::vector<std::unique_ptr<Tensor>> tensors;
    context.object.StopHost(true);
    // As many as there may be on a device at a time, by their chunks.
    const int batches = FakeNcclVersion() < NcclBackend::kVersionLooksOften ? 1 : 5;
    int enqueued = 0, ended = 0;
    for (int i = 0; i < batches; ++i) {
      tensors.push_back(std::make_unique<Tensor>(context, AsBytes(ones)));
      CollectiveArgs args =
          Allreduce(DataType::kFloat32, ReduceOp::kSum, *tensors.back(), *tensors.back());
      // What is flat has its place between the others.
      if (i % 3 == 1) {
        args.kind = CollectiveKind::kBroadcast;
        args.input = {};
      }
      args.enqueued = [&](const std::shared_ptr<DeviceEvent>&) { ++enqueued; };
      ASSERT_THAT(context.object.Launch(std::move(args),
                                        [&](absl::Status status) {
                                          EXPECT_THAT(status, IsOk());
                                          ++ended;
                                        }),
                  IsOk());
    }
    ASSERT_TRUE(context.DriveUntil([&] { return enqueued == batches; }));
    EXPECT_EQ(ended, 0);
    context.object.StopHost(false);
    ASSERT_TRUE(context.DriveUntil([&] { return ended == batches; }));
  });
}

// The program frees memory while slices have yet to come to the host: the driver lets nobody else
// in until its device is idle, which it is when everything has been exchanged.
TEST_F(HierarchicalAllreduceTest, GoesOnWhileAFreeOfTheProgramsHasTheDriversLock) {
  RunRanksOf(2, 2, /*chunk_bytes=*/1024, [](Context& context) {
    const std::vector<float> ones =
        Ones(2000);  // eight chunks, of which two are exchanged at first
    Tensor tensor(context, AsBytes(ones));
    auto freed = std::make_unique<Tensor>(context, AsBytes(ones));
    std::optional<absl::Status> ended;
    bool enqueued = false;
    context.object.StopHost(true);
    CollectiveArgs args = Allreduce(DataType::kFloat32, ReduceOp::kSum, tensor, tensor);
    args.enqueued = [&](const std::shared_ptr<DeviceEvent>&) { enqueued = true; };
    ASSERT_THAT(context.object.Launch(std::move(args),
                                      [&](absl::Status status) { ended = std::move(status); }),
                IsOk());
    ASSERT_TRUE(context.DriveUntil([&] { return enqueued; }));
    context.barrier.arrive_and_wait();
    std::thread program;
    if (context.rank == Rank{0}) {
      program = std::thread([&] { freed.reset(); });
      while (FakeCudaLockHolders() == 0) std::this_thread::yield();
    }
    context.barrier.arrive_and_wait();
    context.object.StopHost(false);
    ASSERT_TRUE(context.DriveUntil([&] { return ended.has_value(); }));
    EXPECT_THAT(*ended, IsOk());
    if (program.joinable()) program.join();
    const Bytes sum = tensor.value();
    EXPECT_EQ(*reinterpret_cast<const float*>(sum.data() + sum.size() - 4), 4.0f);
  });
}

// One rank goes in the middle of the exchange. Its peer on the other node is told so by the host's
// backend and knows its name; the others, whose part of NCCL waits for these two, are aborted, as a
// worker is by the end of its generation.
TEST_F(HierarchicalAllreduceTest, ALostRankIsNamedByItsPeerAndNobodyHangs) {
  std::atomic<bool> over = false;
  RunRanksOf(2, 2, /*chunk_bytes=*/1024, [&over](Context& context) {
    const std::vector<float> ones = Ones(4000);
    Tensor tensor(context, AsBytes(ones));
    std::optional<absl::Status> ended;
    bool enqueued = false;
    if (context.rank == Rank{3}) context.object.StopHost(true);
    CollectiveArgs args = Allreduce(DataType::kFloat32, ReduceOp::kSum, tensor, tensor);
    args.enqueued = [&](const std::shared_ptr<DeviceEvent>&) { enqueued = true; };
    ASSERT_THAT(context.object.Launch(std::move(args),
                                      [&](absl::Status status) { ended = std::move(status); }),
                IsOk());
    if (context.rank == Rank{3}) {
      ASSERT_TRUE(context.DriveUntil([&] { return enqueued; }));
      return context.destroy();
    }
    ASSERT_TRUE(context.DriveUntil([&] { return ended.has_value() || over; }));
    if (context.rank == Rank{1}) {
      ASSERT_TRUE(ended.has_value());
      EXPECT_EQ(SuspectRank(*ended), Rank{3}) << *ended;
      over = true;
    } else {
      EXPECT_FALSE(ended.has_value());
      context.object.Abort();
      ASSERT_TRUE(context.DriveUntil([&] { return ended.has_value(); }));
      EXPECT_THAT(*ended, StatusIs(absl::StatusCode::kAborted, testing::_));
    }
    EXPECT_TRUE(context.object.nccl().HoldsGate());  // nobody reads what is there
    context.object.nccl().PassGate();
  });
}

// What an aborted kernel leaves would go where the exchange still reads, and with it to a rank that
// knows of no failure yet.
TEST_F(HierarchicalAllreduceTest, NothingIsEndedWhileAnExchangeIsUnderWay) {
  SKIP_WHERE_NCCL_LACKS("ncclCommRevoke");
  exchange_limit_ = absl::InfiniteDuration();
  RunRanksOf(2, 2, /*chunk_bytes=*/1 << 20, [](Context& context) {
    const std::vector<float> ones = Ones(4000);
    Tensor tensor(context, AsBytes(ones));
    MakeCommunicators(context, tensor);
    std::optional<absl::Status> second;
    context.object.StopHost(context.rank == Rank{1});
    context.barrier.arrive_and_wait();
    const int64_t exchanges = context.object.exchanges();
    ASSERT_THAT(context.object.Launch(Allreduce(DataType::kFloat32, ReduceOp::kSum, tensor, tensor),
                                      [&](absl::Status status) { second = std::move(status); }),
                IsOk());
    if (context.rank != Rank{1}) {
      ASSERT_TRUE(context.DriveUntil([&] { return context.object.exchanges() > exchanges; }));
    }
    context.barrier.arrive_and_wait();
    const long revoked = FakeNcclRevokedCommunicators();
    if (context.rank == Rank{3}) {
      context.object.nccl().Abort();
      for (int i = 0; i < 20'000; ++i) {  // long enough, if it were to be
        context.object.Progress();
        std::this_thread::yield();
      }
      EXPECT_EQ(FakeNcclRevokedCommunicators(), revoked);
    }
    context.barrier.arrive_and_wait();
    context.object.StopHost(false);
    if (context.rank == Rank{3}) {
      ASSERT_TRUE(context.DriveUntil([&] { return FakeNcclRevokedCommunicators() > revoked; }));
    }
    context.barrier.arrive_and_wait();
    context.object.Abort();
    ASSERT_TRUE(context.DriveUntil([&] { return second.has_value(); }));
    context.object.nccl().PassGate();
  });
}

TEST_F(HierarchicalAllreduceTest, AnErrorOfNcclEndsTheExchangesThatWait) {
  std::atomic<bool> over = false;
  RunRanksOf(2, 2, /*chunk_bytes=*/1024, [&over](Context& context) {
    const std::vector<float> ones = Ones(4000);
    Tensor tensor(context, AsBytes(ones));
    MakeCommunicators(context, tensor);
    std::optional<absl::Status> second;
    context.barrier.arrive_and_wait();
    if (context.rank == Rank{0}) SetFakeNccl("async_error", 6);
    context.barrier.arrive_and_wait();
    ASSERT_THAT(context.object.Launch(Allreduce(DataType::kFloat32, ReduceOp::kSum, tensor, tensor),
                                      [&](absl::Status status) { second = std::move(status); }),
                IsOk());
    ASSERT_TRUE(context.DriveUntil([&] { return second.has_value() || over; }));
    if (second.has_value()) {
      // Of the one rank whose call it was; the others wait for it.
      EXPECT_THAT(*second, StatusIs(absl::StatusCode::kUnavailable,
                                    testing::HasSubstr("Connection reset by peer")));
      EXPECT_THAT(*second, StatusIs(absl::StatusCode::kUnavailable, testing::HasSubstr("node ")));
      over = true;
    } else {
      context.object.Abort();
      ASSERT_TRUE(context.DriveUntil([&] { return second.has_value(); }));
      EXPECT_THAT(*second, StatusIs(absl::StatusCode::kAborted, testing::_));
    }
    context.object.nccl().PassGate();
  });
}

// For tests/gpu/run: what a single real GPU can show. Both ranks are on it, each a node of its own,
// so NCCL has nothing to move; the stream and the words are real.
TEST(HierarchicalAllreduceOnAGpu, NodesOfOneRankShareIt) {
  GroupCase<CollectiveBackend> group;
  group.new_group = [](int32_t world_size) {
    auto runtime = OpenTestGpus();
    auto network = std::make_shared<InProcessNetwork>(world_size);
    return [runtime, network]() -> std::unique_ptr<CollectiveBackend> {
      auto host = std::make_unique<HostBackend>(std::make_unique<InProcessTransport>(*network));
      return std::make_unique<DeviceCopies>(
          std::make_unique<HierarchicalRank>(
              HierarchicalRank::Options{.ranks_per_node = 1, .chunk_bytes = 64 << 10},
              std::make_unique<NcclBackend>(runtime, Clock::Real(), NcclBackendOptions()),
              std::move(host)),
          *runtime->device, /*index=*/0);
    };
  };
  RunRanks<CollectiveBackend>(group, 2, [](RankContext<CollectiveBackend>& context) {
    constexpr int64_t kCount = 300'001;
    std::vector<Bytes> inputs;
    for (int32_t r = 0; r < 2; ++r) inputs.push_back(TestInput(DataType::kFloat32, r, kCount, 1));
    const Bytes& own = inputs[static_cast<size_t>(ToInt(context.rank))];
    for (int64_t i = 0; i < 4; ++i) {
      Bytes output = own;
      std::optional<absl::Status> ended;
      CollectiveArgs args;
      args.kind = CollectiveKind::kAllreduce;
      args.dtype = DataType::kFloat32;
      args.op = ReduceOp::kSum;
      args.sequence = i;
      args.input = own;
      args.output = absl::MakeSpan(output);
      ASSERT_THAT(context.object.Launch(std::move(args),
                                        [&](absl::Status status) { ended = std::move(status); }),
                  IsOk());
      ASSERT_TRUE(context.DriveUntil([&] { return ended.has_value(); }));
      EXPECT_THAT(*ended, IsOk());
      EXPECT_EQ(CheckReduced(DataType::kFloat32, ReduceOp::kSum, inputs, output.data(), kCount),
                "");
      // Memory is freed when all that is on the device is through, the other rank's streams, too.
      context.barrier.arrive_and_wait();
    }
  });
}

}  // namespace
}  // namespace coordd
