// What NcclBackend does that other backends do not: events, faults of the library, the gate.
#include "worker/gpu/nccl/nccl_backend.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "tests/worker/support/nccl_backend_fixture.h"

namespace coordd {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST_F(NcclBackendTest, ReadsItsInputWhenTheCallersStreamHasMadeIt) {
  RunTwo([&](Context& context) {
    Tensor tensor = NewTensor(context, 1000, 0.0f);
    DeviceStream stream = DeviceStream::Create(*runtime_->device, tensor.device).value();
    DeviceKernels kernels = DeviceKernels::Load(*runtime_->device, tensor.device).value();
    const DeviceMemory word =
        DeviceMemory::AllocatePinned(*runtime_->device, tensor.device, 4).value();
    auto* const closed = new (word.data()) std::atomic<uint32_t>(1);
    const DeviceMemory values =
        DeviceMemory::AllocatePinned(*runtime_->device, tensor.device, 4000).value();
    std::fill_n(reinterpret_cast<float*>(values.data()), 1000, 2.0f);
    // The caller's stream is busy; what it will write is what is to be reduced.
    ASSERT_TRUE(kernels.Gate(closed, stream.get()).ok());
    ASSERT_TRUE(CopyAsync(*runtime_->device, tensor.device, tensor.memory.data(), values.data(),
                          4000, stream.get())
                    .ok());
    CollectiveArgs args = Sum(tensor);
    args.ready = std::make_shared<DeviceEvent>(
        DeviceEvent::Create(*runtime_->device, tensor.device).value());
    ASSERT_TRUE(args.ready->Record(stream.get()).ok());
    std::optional<absl::Status> ended;
    bool enqueued = false;
    args.enqueued = [&](const std::shared_ptr<DeviceEvent>&) { enqueued = true; };
    ASSERT_TRUE(context.object.Launch(args, [&](absl::Status s) { ended = std::move(s); }).ok());
    // The host is not held up by it.
    context.DriveUntil([&] { return enqueued; });
    EXPECT_FALSE(ended.has_value());
    *closed = 0;
    context.DriveUntil([&] { return ended.has_value(); });
    EXPECT_EQ(*ended, absl::OkStatus());
    EXPECT_EQ(tensor.values()[999], 4.0f);
  });
}

TEST_F(NcclBackendTest, WaitsForWhatNcclHasInProgress) {
  SetFakeNccl("init_polls", 7);
  SetFakeNccl("call_polls", 5);
  RunTwo([&](Context& context) {
    Tensor tensor = NewTensor(context, 10, 1.0f);
    for (int i = 0; i < 3; ++i) ASSERT_EQ(RunOne(context, Sum(tensor)), absl::OkStatus());
    EXPECT_EQ(tensor.values()[9], 8.0f);
  });
}

// NCCL launches it on a thread of its own, and whoever sleeps meanwhile is late by a wake-up.
TEST_F(NcclBackendTest, ACallIsOnTheDeviceWhenItsLaunchReturns) {
  SetFakeNccl("call_polls", 3);
  RunTwo([&](Context& context) {
    Tensor tensor = NewTensor(context, 10, 1.0f);
    ASSERT_EQ(RunOne(context, Sum(tensor)), absl::OkStatus());
    for (int i = 0; i < 10; ++i) {
      CollectiveArgs args = Sum(tensor);
      bool enqueued = false, ended = false;
      args.enqueued = [&](const std::shared_ptr<DeviceEvent>&) { enqueued = true; };
      ASSERT_TRUE(context.object.Launch(args, [&](absl::Status) { ended = true; }).ok());
      EXPECT_TRUE(enqueued);
      context.DriveUntil([&] { return ended; });
    }
  });
}

// Each that is there when a rank is lost keeps the others from being told for the time that its
// kernel looks for the peer.
TEST_F(NcclBackendTest, FewBatchesAreOnTheDeviceAtATime) {
  constexpr size_t kBatches = 3 * NcclBackend::kMaxEnqueued;
  const size_t most = MostEnqueued();
  std::atomic<bool> looked = false;
  RunTwo([&](Context& context) {
    Tensor tensor = NewTensor(context, 10, 1.0f);
    ASSERT_EQ(RunOne(context, Sum(tensor)), absl::OkStatus());
    while (context.rank == Rank{1} && !looked) std::this_thread::yield();
    size_t enqueued = 0, ended = 0;
    for (size_t i = 0; i < kBatches; ++i) {
      CollectiveArgs args = Sum(tensor);
      args.enqueued = [&](const std::shared_ptr<DeviceEvent>&) { ++enqueued; };
      ASSERT_TRUE(context.object.Launch(args, [&](absl::Status) { ++ended; }).ok());
    }
    if (context.rank == Rank{0}) {
      context.DriveUntil([&] { return enqueued == most; });
      for (int i = 0; i < 100; ++i) context.object.Progress();
      EXPECT_EQ(enqueued, most);
      looked = true;
    }
    context.DriveUntil([&] { return ended == kBatches; });
    EXPECT_EQ(enqueued, kBatches);
  });
}

TEST_F(NcclBackendTest, FlushesItsCommunicatorWhenEverythingIsDone) {
  const long finalized = FakeNcclFinalizedCommunicators();
  const long aborted = FakeNcclAbortedCommunicators();
  RunTwo([&](Context& context) {
    Tensor tensor = NewTensor(context, 10, 1.0f);
    ASSERT_EQ(RunOne(context, Sum(tensor)), absl::OkStatus());
    context.object.Abort();  // as the executor does when it stops; nothing is in flight
    context.destroy();
  });
  EXPECT_EQ(FakeNcclFinalizedCommunicators(), finalized + 2);
  EXPECT_EQ(FakeNcclAbortedCommunicators(), aborted);
}

TEST_F(NcclBackendTest, TwoRanksOnOneDeviceAreToldSo) {
  RunTwo(
      [&](Context& context) {
        Tensor tensor = NewTensor(context, 10, 1.0f);
        const absl::Status status = RunOne(context, Sum(tensor));
        EXPECT_TRUE(absl::IsUnavailable(status)) << status;
        EXPECT_THAT(
            std::string(status.message()),
            AllOf(HasSubstr("GPU"), HasSubstr(" of 2, process set 0"),
                  HasSubstr("device 0 GPU-0010"), HasSubstr("NCCL " + FakeNcclVersionText()),
                  HasSubstr("two ranks use one GPU")));
      },
      /*same_device=*/true);
}

TEST_F(NcclBackendTest, ARankThatDoesNotComeIsCounted) {
  options_.init_limit = absl::Milliseconds(300);
  RunTwo([&](Context& context) {
    if (context.rank == Rank{1}) return;
    Tensor tensor = NewTensor(context, 10, 1.0f);
    const absl::Status status = RunOne(context, Sum(tensor));
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("rank 0 was connecting"), HasSubstr("1 of 2 ranks have come")));
  });
}

TEST_F(NcclBackendTest, ARankWithoutAnIdSaysForWhomItWaits) {
  options_.init_limit = absl::Milliseconds(300);
  RunTwo([&](Context& context) {
    if (context.rank == Rank{0}) return;
    Tensor tensor = NewTensor(context, 10, 1.0f);
    const absl::Status status = RunOne(context, Sum(tensor));
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("rank 1 was waiting for the id that rank 0 mints; 1 of 2 ranks"));
  });
}

TEST_F(NcclBackendTest, InitThatNeverEndsIsAborted) {
  options_.init_limit = absl::Milliseconds(300);
  SetFakeNccl("init_never", 1);
  const long aborted = FakeNcclAbortedCommunicators();
  RunTwo([&](Context& context) {
    Tensor tensor = NewTensor(context, 10, 1.0f);
    const absl::Status status = RunOne(context, Sum(tensor));
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
    // What comes later ends with the same error, without waiting.
    EXPECT_EQ(RunOne(context, Sum(tensor)), status);
    context.destroy();
  });
  EXPECT_EQ(FakeNcclAbortedCommunicators(), aborted + 2);
}

TEST_F(NcclBackendTest, AnIdThatCannotBeMintedIsTheErrorOfRankZero) {
  SetFakeNccl("id_error", static_cast<long>(NcclResult::kSystemError));
  options_.init_limit = absl::Milliseconds(300);
  RunTwo([&](Context& context) {
    Tensor tensor = NewTensor(context, 10, 1.0f);
    const absl::Status status = RunOne(context, Sum(tensor));
    if (context.rank == Rank{1}) {
      EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
      return;
    }
    EXPECT_THAT(
        std::string(status.message()),
        AllOf(HasSubstr("ncclGetUniqueId: unhandled system error"), HasSubstr("NCCL_DEBUG=WARN")));
  });
}

TEST_F(NcclBackendTest, AnInitThatIsRefusedIsQuoted) {
  SetFakeNccl("init_error", static_cast<long>(NcclResult::kSystemError));
  RunTwo([&](Context& context) {
    Tensor tensor = NewTensor(context, 10, 1.0f);
    const absl::Status status = RunOne(context, Sum(tensor));
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("ncclCommInitRankConfig: unhandled system error (run with "
                          "NCCL_DEBUG=INFO for details): the fake was told to refuse"));
  });
}

TEST_F(NcclBackendTest, NobodyReadsTheResultOfACollectiveThatFailed) {
  RunTwo([&](Context& context) {
    Tensor tensor = NewTensor(context, 10, 1.0f);
    ASSERT_EQ(RunOne(context, Sum(tensor)), absl::OkStatus());
    context.barrier.arrive_and_wait();
    // Of the two next operations the first one ends with the error of a network.
    if (context.rank == Rank{0})
      SetFakeNccl("async_error", static_cast<long>(NcclResult::kRemoteError));
    context.barrier.arrive_and_wait();
    DeviceStream consumer = DeviceStream::Create(*runtime_->device, tensor.device).value();
    DeviceEvent consumed = DeviceEvent::Create(*runtime_->device, tensor.device).value();
    std::optional<absl::Status> ended;
    bool enqueued = false;
    CollectiveArgs args = Sum(tensor);
    args.enqueued = [&](const std::shared_ptr<DeviceEvent>& end) {
      enqueued = true;
      ASSERT_TRUE(consumer.Wait(end->get()).ok());
      ASSERT_TRUE(consumed.Record(consumer.get()).ok());
    };
    ASSERT_TRUE(context.object.Launch(args, [&](absl::Status s) { ended = std::move(s); }).ok());
    // On a busy machine NCCL's launch may take longer than is polled for.
    context.DriveUntil([&] { return enqueued; });
    // One rank sees the error; coordd tells the other, which hangs as NCCL does, that it is over.
    context.DriveUntil([&] { return ended.has_value() || over_; });
    if (!ended.has_value()) context.object.Abort();
    over_ = true;
    context.DriveUntil([&] { return ended.has_value(); });
    EXPECT_FALSE(ended->ok());
    if (!absl::IsAborted(*ended)) {
      EXPECT_THAT(std::string(ended->message()),
                  AllOf(HasSubstr("remote process exited"), HasSubstr("Connection reset by peer"),
                        HasSubstr("a peer is gone")));
    }
    // The library has let go, and yet the consumer's stream stands before the gate,
    EXPECT_FALSE(consumed.Happened().value());
    // until the backend ends: by then the program knows.
    context.destroy();
    while (!consumed.Happened().value()) std::this_thread::yield();
  });
}

TEST_F(NcclBackendTest, RegistersFusionBuffersWithEveryCommunicator) {
  constexpr int64_t kBytes = 1 << 20;
  const long before = FakeNcclRegisteredBuffers();
  RunTwo([&](Context& context) {
    ASSERT_TRUE(context.object.DefineGroup(ProcessSetId{3}, {Rank{0}, Rank{1}}).ok());
    Tensor tensor = NewTensor(context, 10, 1.0f);
    ASSERT_EQ(RunOne(context, Sum(tensor)), absl::OkStatus());
    EXPECT_EQ(context.object.registered_bytes(), 0);  // there is none yet
    ASSERT_TRUE(context.object.AllocateFusionBuffer(kBytes).ok());
    ASSERT_EQ(RunOne(context, Sum(tensor)), absl::OkStatus());
    EXPECT_EQ(context.object.registered_bytes(), kBytes);
    CollectiveArgs args = Sum(tensor);
    args.group = ProcessSetId{3};
    ASSERT_EQ(RunOne(context, args), absl::OkStatus());
    EXPECT_EQ(context.object.registered_bytes(), kBytes);
    context.object.EndGroup(ProcessSetId{3});
    ASSERT_EQ(RunOne(context, Sum(tensor)), absl::OkStatus());
  });
  EXPECT_EQ(FakeNcclRegisteredBuffers(), before + 4);
}

TEST_F(NcclBackendTest, ABufferThatIsNotRegisteredServesAllTheSame) {
  const auto run = [&] {
    RunTwo([&](Context& context) {
      Tensor tensor = NewTensor(context, 10, 1.0f);
      ASSERT_TRUE(context.object.AllocateFusionBuffer(1 << 20).ok());
      ASSERT_EQ(RunOne(context, Sum(tensor)), absl::OkStatus());
      EXPECT_EQ(tensor.values()[9], 2.0f);
      EXPECT_EQ(context.object.registered_bytes(), 0);
    });
  };
  SetFakeNccl("register_error", static_cast<long>(NcclResult::kSystemError));
  run();
  SetFakeNccl("register_error", 0);
  options_.register_buffers = false;
  run();
  options_.register_buffers = true;
  runtime_ = NcclRuntime::Open({{kNcclVariable, FakeOldNcclPath()}}, FakeCudaPath()).value();
  run();
}

TEST_F(NcclBackendTest, AFusionBufferBecomesASymmetricWindowOfTheGroupsThatAgreed) {
  SKIP_WHERE_NCCL_LACKS("ncclCommWindowRegister");
  window_bytes_ = 1 << 20;
  const long windows = FakeNcclWindows(), registered = FakeNcclRegisteredBuffers();
  RunTwo([&](Context& context) {
    context.object.UseWindow(ProcessSetId{0});
    ASSERT_TRUE(context.object.DefineGroup(ProcessSetId{3}, {Rank{0}, Rank{1}}).ok());
    Tensor tensor = NewTensor(context, 10, 1.0f);
    ASSERT_EQ(RunOne(context, Sum(tensor)), absl::OkStatus());
    EXPECT_EQ(tensor.values()[9], 2.0f);
    EXPECT_EQ(context.object.registered_bytes(), window_bytes_);
    const auto buffer = context.object.AllocateFusionBuffer(window_bytes_);
    ASSERT_TRUE(buffer.ok());
    CollectiveArgs args = Sum(tensor);
    args.group = ProcessSetId{3};  // which registers it as every other buffer
    ASSERT_EQ(RunOne(context, args), absl::OkStatus());
    EXPECT_EQ(context.object.registered_bytes(), window_bytes_);
    context.object.EndGroup(ProcessSetId{3});
    ASSERT_EQ(RunOne(context, Sum(tensor)), absl::OkStatus());
  });
  EXPECT_EQ(FakeNcclWindows(), windows + 2);
  EXPECT_EQ(FakeNcclRegisteredBuffers(), registered + 2);
}

TEST_F(NcclBackendTest, WithoutSymmetricMemoryBetweenTheRanksABufferIsRegisteredAlone) {
  SKIP_WHERE_NCCL_LACKS("ncclCommWindowRegister");
  window_bytes_ = 1 << 20;
  SetFakeNccl("no_windows", 1);
  const long windows = FakeNcclWindows(), registered = FakeNcclRegisteredBuffers();
  RunTwo([&](Context& context) {
    context.object.UseWindow(ProcessSetId{0});
    Tensor tensor = NewTensor(context, 10, 1.0f);
    ASSERT_EQ(RunOne(context, Sum(tensor)), absl::OkStatus());
    EXPECT_EQ(tensor.values()[9], 2.0f);
  });
  EXPECT_EQ(FakeNcclWindows(), windows);
  EXPECT_EQ(FakeNcclRegisteredBuffers(), registered + 2);
}

TEST_F(NcclBackendTest, AWindowThatARankDoesNotComeToEndsByItsDeadline) {
  SKIP_WHERE_NCCL_LACKS("ncclCommWindowRegister");
  window_bytes_ = 1 << 20;
  options_.init_limit = absl::Seconds(1);
  RunTwo([&](Context& context) {
    Tensor tensor = NewTensor(context, 10, 1.0f);
    if (context.rank == Rank{0}) {
      context.object.UseWindow(ProcessSetId{0});
      const absl::Status status = RunOne(context, Sum(tensor));
      EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
      over_ = true;
      return;
    }
    // It goes on to its sum, in which NCCL waits for the other.
    std::optional<absl::Status> ended;
    ASSERT_TRUE(
        context.object.Launch(Sum(tensor), [&](absl::Status s) { ended = std::move(s); }).ok());
    context.DriveUntil([&] { return over_.load(); });
    context.object.Abort();
    context.DriveUntil([&] { return ended.has_value(); });
    EXPECT_FALSE(ended->ok());
    context.object.PassGate();  // its memory goes
  });
}

TEST_F(NcclBackendTest, AnAbortDoesNotWaitForTheGate) {
  options_.watchdog.abort_limit = absl::InfiniteDuration();  // NCCL's has to return
  RunTwo([&](Context& context) {
    Tensor tensor = NewTensor(context, 10, 1.0f);
    ASSERT_EQ(RunOne(context, Sum(tensor)), absl::OkStatus());
    context.barrier.arrive_and_wait();
    if (context.rank == Rank{1}) return;
    // Three are on the device, one behind the other, and the first one never ends.
    DeviceStream consumer = DeviceStream::Create(*runtime_->device, tensor.device).value();
    DeviceEvent consumed = DeviceEvent::Create(*runtime_->device, tensor.device).value();
    int enqueued = 0, ended = 0;
    for (int i = 0; i < 3; ++i) {
      CollectiveArgs args = Sum(tensor);
      args.enqueued = [&](const std::shared_ptr<DeviceEvent>& end) {
        ++enqueued;
        ASSERT_TRUE(consumer.Wait(end->get()).ok());
        ASSERT_TRUE(consumed.Record(consumer.get()).ok());
      };
      ASSERT_TRUE(context.object
                      .Launch(std::move(args),
                              [&](absl::Status status) {
                                EXPECT_TRUE(absl::IsAborted(status)) << status;
                                ++ended;
                              })
                      .ok());
    }
    context.DriveUntil([&] { return enqueued == 3; });
    context.object.Abort();
    context.DriveUntil([&] { return ended == 3; });
    EXPECT_FALSE(consumed.Happened().value());
    EXPECT_TRUE(context.object.HoldsGate());
    context.object.PassGate();
    while (!consumed.Happened().value()) std::this_thread::yield();
    EXPECT_FALSE(context.object.HoldsGate());
  });
}

TEST_F(NcclBackendTest, WhatIsMadeOfAHeldResultHoldsUpNobody) {
  options_.watchdog.abort_limit = absl::InfiniteDuration();
  RunTwo([&](Context& context) {
    Tensor tensor = NewTensor(context, 10, 1.0f);
    ASSERT_EQ(RunOne(context, Sum(tensor)), absl::OkStatus());
    context.barrier.arrive_and_wait();
    if (context.rank == Rank{1}) return;
    // The program's next step is on the device, behind the result of this one.
    DeviceStream program = DeviceStream::Create(*runtime_->device, tensor.device).value();
    CollectiveArgs first = Sum(tensor), second = Sum(tensor);
    second.ready = std::make_shared<DeviceEvent>(
        DeviceEvent::Create(*runtime_->device, tensor.device).value());
    int enqueued = 0, ended = 0;
    first.enqueued = [&](const std::shared_ptr<DeviceEvent>& end) {
      ++enqueued;
      ASSERT_TRUE(program.Wait(end->get()).ok());
      ASSERT_TRUE(second.ready->Record(program.get()).ok());
    };
    const auto done = [&](absl::Status status) {
      EXPECT_TRUE(absl::IsAborted(status)) << status;
      ++ended;
    };
    ASSERT_TRUE(context.object.Launch(first, done).ok());
    context.DriveUntil([&] { return enqueued == 1; });
    second.enqueued = [&](const std::shared_ptr<DeviceEvent>&) { ++enqueued; };
    ASSERT_TRUE(context.object.Launch(second, done).ok());
    context.DriveUntil([&] { return enqueued == 2; });
    const long aborted = FakeNcclAbortedCommunicators();
    context.object.Abort();
    context.DriveUntil([&] { return ended == 2; });
    EXPECT_TRUE(absl::IsAborted(RunOne(context, Sum(tensor))));
    // NCCL waits for the second one, and that for the program.
    EXPECT_EQ(FakeNcclAbortedCommunicators(), aborted);
    context.object.PassGate();
    while (FakeNcclAbortedCommunicators() == aborted) std::this_thread::yield();
  });
}

TEST_F(NcclBackendTest, CommunicatorsBehindEachOtherOnTheDeviceAreAbortedTogether) {
  SKIP_WHERE_NCCL_LACKS("ncclCommRevoke");
  options_.watchdog.abort_limit = absl::InfiniteDuration();
  RunTwo([&](Context& context) {
    ASSERT_TRUE(context.object.DefineGroup(ProcessSetId{3}, {Rank{0}, Rank{1}}).ok());
    Tensor tensor = NewTensor(context, 10, 1.0f);
    CollectiveArgs first = Sum(tensor), second = Sum(tensor);
    first.group = ProcessSetId{3};
    ASSERT_EQ(RunOne(context, second), absl::OkStatus());
    ASSERT_EQ(RunOne(context, first), absl::OkStatus());
    context.barrier.arrive_and_wait();
    if (context.rank == Rank{1}) return;
    // What never ends is of the communicator that was made last; that of the older one is behind.
    int enqueued = 0, ended = 0;
    for (CollectiveArgs* args : {&first, &second}) {
      args->enqueued = [&](const std::shared_ptr<DeviceEvent>&) { ++enqueued; };
      ASSERT_TRUE(context.object.Launch(*args, [&](absl::Status) { ++ended; }).ok());
    }
    context.DriveUntil([&] { return enqueued == 2; });
    const long aborted = FakeNcclAbortedCommunicators();
    const long revoked = FakeNcclRevokedCommunicators();
    context.object.Abort();
    context.DriveUntil([&] { return ended == 2; });
    // NCCL's abort frees memory (commFree), for which it waits until the gate has been passed: what
    // ends meanwhile is what runs.
    while (FakeNcclRevokedCommunicators() < revoked + 2) std::this_thread::yield();
    EXPECT_EQ(FakeNcclAbortedCommunicators(), aborted);
    context.object.PassGate();  // its memory goes
    while (FakeNcclAbortedCommunicators() < aborted + 2) std::this_thread::yield();
  });
}

TEST_F(NcclBackendTest, AnAbortThatHangsHoldsUpNobody) {
  options_.watchdog.abort_limit = absl::Milliseconds(100);
  RunTwo([&](Context& context) {
    Tensor tensor = NewTensor(context, 10, 1.0f);
    ASSERT_EQ(RunOne(context, Sum(tensor)), absl::OkStatus());
    context.barrier.arrive_and_wait();
    if (context.rank == Rank{1}) {
      // Ends when the other is through.
      context.barrier.arrive_and_wait();
      return;
    }
    SetFakeNccl("abort_hangs", 1);
    std::optional<absl::Status> ended;
    ASSERT_TRUE(
        context.object.Launch(Sum(tensor), [&](absl::Status s) { ended = std::move(s); }).ok());
    context.object.Abort();
    context.DriveUntil([&] { return ended.has_value(); });
    EXPECT_TRUE(absl::IsAborted(*ended)) << *ended;
    // The fake's stream ends only when its operation does, which a GPU's would not wait for.
    SetFakeNccl("abort_hangs", 0);
    context.destroy();
    context.barrier.arrive_and_wait();
  });
}

TEST_F(NcclBackendTest, RefusesMemoryOfTheHostAndOfOtherDevices) {
  RunTwo([&](Context& context) {
    Tensor tensor = NewTensor(context, 10, 1.0f);
    CollectiveArgs args = Sum(tensor);
    args.device = 5;
    const absl::Status other = RunOne(context, args);
    EXPECT_TRUE(absl::IsInvalidArgument(other)) << other;
    EXPECT_THAT(std::string(other.message()), HasSubstr("cuda 5, expected device"));
    args.memory = MemoryKind::kHost;
    args.device = -1;
    EXPECT_TRUE(absl::IsInvalidArgument(RunOne(context, args)));
    args = Sum(tensor);
    args.dtype = DataType::kInt16;
    EXPECT_THAT(std::string(RunOne(context, args).message()),
                HasSubstr("allreduce of int16: NCCL does not reduce that here"));
  });
}

}  // namespace
}  // namespace coordd
