// How communicators end: what may keep whom from it, where freeing one waits for the device and
// keeps the driver's lock, as the stand-ins do.
#include "worker/gpu/nccl/nccl_watchdog.h"

#include <gmock/gmock.h>

#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "tests/worker/support/nccl_backend_fixture.h"

namespace coordd {
namespace {

class NcclWatchdogTest : public NcclBackendTest {
 protected:
  ~NcclWatchdogTest() override { SetFakeCuda("free_locks", 1); }

  static void YieldUntil(const std::function<bool()>& condition) {
    const absl::Time limit = Clock::Real().Now() + kGroupHangLimit;
    while (!condition()) {
      ASSERT_LT(Clock::Real().Now(), limit);
      std::this_thread::yield();
    }
  }
  // One that its peer never joins: it stays on the device.
  static void LaunchWhatNeverEnds(Context& context, CollectiveArgs args) {
    bool enqueued = false;
    args.enqueued = [&](const std::shared_ptr<DeviceEvent>&) { enqueued = true; };
    ASSERT_TRUE(context.object.Launch(args, [](absl::Status) {}).ok());
    context.DriveUntil([&] { return enqueued; });
  }
  // What a program does on a stream of its own, for which it needs the driver.
  void WorkOnDevice(int32_t device) {
    DeviceStream stream = DeviceStream::Create(*runtime_->device, device).value();
    DeviceKernels kernels = DeviceKernels::Load(*runtime_->device, device).value();
    DeviceEvent end = DeviceEvent::Create(*runtime_->device, device).value();
    ASSERT_TRUE(kernels.Copy({}, stream.get()).ok());
    ASSERT_TRUE(end.Record(stream.get()).ok());
    YieldUntil([&] { return end.Happened().value(); });
  }
};

TEST_F(NcclWatchdogTest, AFailureIsNotHeldUpByTheEndOfAnotherCommunicator) {
  SetFakeCuda("free_locks", 0);  // with the lock nobody would get at the device, coordd or not
  options_.watchdog.idle_limit = absl::ZeroDuration();
  RunTwo([&](Context& context) {
    ASSERT_TRUE(context.object.DefineGroup(ProcessSetId{3}, {Rank{0}, Rank{1}}).ok());
    Tensor tensor = NewTensor(context, 10, 1.0f);
    CollectiveArgs all = Sum(tensor), set = Sum(tensor);
    set.group = ProcessSetId{3};
    ASSERT_EQ(RunOne(context, all), absl::OkStatus());
    ASSERT_EQ(RunOne(context, set), absl::OkStatus());
    context.barrier.arrive_and_wait();
    if (context.rank == Rank{1}) return;
    LaunchWhatNeverEnds(context, all);
    // The program removes the set while the other rank is lost. To free that waits for the device.
    const long finalized = FakeNcclFinalizedCommunicators();
    const long live = FakeNcclLiveCommunicators();
    context.object.EndGroup(ProcessSetId{3});
    YieldUntil([&] { return FakeNcclFinalizedCommunicators() == finalized + 1; });
    const long revoked = FakeNcclRevokedCommunicators();
    context.object.Abort();
    if (FakeNcclHas("ncclCommRevoke"))
      YieldUntil([&] { return FakeNcclRevokedCommunicators() == revoked + 1; });
    EXPECT_EQ(FakeNcclLiveCommunicators(), live);
    context.object.PassGate();
    YieldUntil([&] { return FakeNcclLiveCommunicators() == live - 2; });
  });
}

TEST_F(NcclWatchdogTest, OneThatIsNoLongerUsedIsFreedWhenNothingIsOnTheDevice) {
  RunTwo([&](Context& context) {
    ASSERT_TRUE(context.object.DefineGroup(ProcessSetId{3}, {Rank{0}, Rank{1}}).ok());
    Tensor tensor = NewTensor(context, 10, 1.0f);
    CollectiveArgs all = Sum(tensor), set = Sum(tensor);
    set.group = ProcessSetId{3};
    ASSERT_EQ(RunOne(context, all), absl::OkStatus());
    ASSERT_EQ(RunOne(context, set), absl::OkStatus());
    context.barrier.arrive_and_wait();
    const long live = FakeNcclLiveCommunicators();
    context.barrier.arrive_and_wait();
    std::optional<absl::Status> ended;
    bool enqueued = false;
    all.enqueued = [&](const std::shared_ptr<DeviceEvent>&) { enqueued = true; };
    if (context.rank == Rank{0}) {
      ASSERT_TRUE(context.object.Launch(all, [&](absl::Status s) { ended = std::move(s); }).ok());
      context.DriveUntil([&] { return enqueued; });
      context.object.EndGroup(ProcessSetId{3});
      WorkOnDevice(context.object.device());
      EXPECT_EQ(FakeNcclLiveCommunicators(), live);
    }
    context.barrier.arrive_and_wait();
    if (context.rank == Rank{1}) {
      ASSERT_TRUE(context.object.Launch(all, [&](absl::Status s) { ended = std::move(s); }).ok());
    }
    context.DriveUntil([&] { return ended.has_value(); });
    EXPECT_EQ(*ended, absl::OkStatus());
    YieldUntil([&] { return FakeNcclLiveCommunicators() == live - 1; });
    context.barrier.arrive_and_wait();
  });
}

TEST_F(NcclWatchdogTest, NothingIsFreedWhileTheGateIsHeld) {
  RunTwo([&](Context& context) {
    Tensor tensor = NewTensor(context, 10, 1.0f);
    ASSERT_EQ(RunOne(context, Sum(tensor)), absl::OkStatus());
    context.barrier.arrive_and_wait();
    if (context.rank == Rank{1}) return context.barrier.arrive_and_wait();  // frees nothing before
    LaunchWhatNeverEnds(context, Sum(tensor));
    const long revoked = FakeNcclRevokedCommunicators();
    const long aborted = FakeNcclAbortedCommunicators();
    context.object.Abort();
    if (FakeNcclHas("ncclCommRevoke"))
      YieldUntil([&] { return FakeNcclRevokedCommunicators() == revoked + 1; });
    // The program does not know yet, and may be in any call of the driver's before it is told.
    WorkOnDevice(context.object.device());
    EXPECT_EQ(FakeCudaLockHolders(), 0);
    EXPECT_EQ(FakeNcclAbortedCommunicators(), aborted);
    EXPECT_TRUE(context.object.HoldsGate());
    context.object.PassGate();
    YieldUntil([&] { return FakeNcclAbortedCommunicators() == aborted + 1; });
    context.barrier.arrive_and_wait();
  });
}

TEST_F(NcclWatchdogTest, WithoutRevocationWhatRunsIsAbortedWhenTheProgramKnows) {
  runtime_ = NcclRuntime::Open({{kNcclVariable, FakeOldNcclPath()}}, FakeCudaPath()).value();
  RunTwo([&](Context& context) {
    Tensor tensor = NewTensor(context, 10, 1.0f);
    ASSERT_EQ(RunOne(context, Sum(tensor)), absl::OkStatus());
    context.barrier.arrive_and_wait();
    if (context.rank == Rank{1}) return context.barrier.arrive_and_wait();  // frees nothing before
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
    context.DriveUntil([&] { return enqueued; });
    context.object.Abort();
    context.DriveUntil([&] { return ended.has_value(); });
    EXPECT_TRUE(absl::IsAborted(*ended)) << *ended;
    WorkOnDevice(tensor.device);
    EXPECT_EQ(FakeCudaLockHolders(), 0);
    EXPECT_FALSE(consumed.Happened().value());
    context.object.PassGate();
    YieldUntil([&] { return consumed.Happened().value(); });
    context.barrier.arrive_and_wait();
  });
}

// Only NCCL's init is under way, which has nothing on the device to be revoked.
TEST_F(NcclWatchdogTest, WhatIsBeingConnectedEndsWithTheOthers) {
  RunTwo([&](Context& context) {
    ASSERT_TRUE(context.object.DefineGroup(ProcessSetId{3}, {Rank{0}, Rank{1}}).ok());
    Tensor tensor = NewTensor(context, 10, 1.0f);
    CollectiveArgs all = Sum(tensor), set = Sum(tensor);
    set.group = ProcessSetId{3};
    ASSERT_EQ(RunOne(context, all), absl::OkStatus());
    context.barrier.arrive_and_wait();
    if (context.rank == Rank{1}) return;
    LaunchWhatNeverEnds(context, all);
    const long live = FakeNcclLiveCommunicators();
    std::optional<absl::Status> ended;
    ASSERT_TRUE(context.object.Launch(set, [&](absl::Status s) { ended = std::move(s); }).ok());
    context.DriveUntil([&] { return FakeNcclLiveCommunicators() == live + 1; });
    context.object.Abort();
    context.DriveUntil([&] { return ended.has_value(); });
    EXPECT_TRUE(absl::IsAborted(*ended)) << *ended;
    WorkOnDevice(context.object.device());
    context.object.PassGate();
    YieldUntil([&] { return FakeNcclLiveCommunicators() == live - 1; });
  });
}

}  // namespace
}  // namespace coordd
