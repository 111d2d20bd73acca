// Memory of the program that NCCL knows, over the fake libraries.
#include "worker/gpu/nccl/program_memory.h"

#include <atomic>
#include <new>
#include <thread>

#include "tests/worker/support/nccl_backend_fixture.h"
#include "worker/gpu/cuda/device_kernels.h"

namespace coordd {
namespace {

class ProgramMemoryTest : public NcclBackendTest {
 protected:
  // A batch at which all ranks register theirs.
  static absl::Status Register(Context& context, Tensor& marker, ProcessSetId group,
                               absl::Span<std::byte> memory) {
    CollectiveArgs args = Sum(marker);
    args.group = group;
    args.before = [&context, group, memory](DeviceKernels&, CudaStream) {
      return context.object.RegisterMemory(group, memory);
    };
    return RunOne(context, std::move(args));
  }
};

TEST_F(ProgramMemoryTest, IsRegisteredInItsGroupAloneUntilItIsReleased) {
  SKIP_WHERE_NCCL_LACKS("ncclCommRegister");
  const long before = FakeNcclRegisteredBuffers();
  RunTwo([&](Context& context) {
    ASSERT_TRUE(context.object.DefineGroup(ProcessSetId{3}, {Rank{0}, Rank{1}}).ok());
    Tensor tensor = NewTensor(context, 10, 1.0f), other = NewTensor(context, 20, 1.0f);
    ASSERT_EQ(RunOne(context, Sum(tensor)), absl::OkStatus());
    ASSERT_EQ(Register(context, tensor, ProcessSetId{0}, tensor.memory.span()), absl::OkStatus());
    ASSERT_EQ(Register(context, tensor, ProcessSetId{3}, other.memory.span()), absl::OkStatus());
    EXPECT_EQ(context.object.registered_bytes(), 120);
    EXPECT_TRUE(context.object.HasMemory(ProcessSetId{0}));
    bool released = false;
    context.object.ReleaseMemory(ProcessSetId{0}, tensor.memory.span(), [&] { released = true; });
    EXPECT_TRUE(released);  // nothing was on the device
    EXPECT_FALSE(context.object.HasMemory(ProcessSetId{0}));
    EXPECT_EQ(context.object.registered_bytes(), 80);
    // Anew, where it was.
    ASSERT_EQ(Register(context, tensor, ProcessSetId{0}, tensor.memory.span()), absl::OkStatus());
    context.object.EndGroup(ProcessSetId{3});
    EXPECT_EQ(context.object.registered_bytes(), 40);
    ASSERT_EQ(RunOne(context, Sum(tensor)), absl::OkStatus());
  });
  EXPECT_EQ(FakeNcclRegisteredBuffers(), before + 6);
}

TEST_F(ProgramMemoryTest, IsLetGoOfWhenTheDeviceIsThroughAndNothingOvertakesThat) {
  SKIP_WHERE_NCCL_LACKS("ncclCommRegister");
  RunTwo([&](Context& context) {
    DeviceRuntime& device = *runtime_->device;
    Tensor tensor = NewTensor(context, 10, 1.0f);
    ASSERT_EQ(Register(context, tensor, ProcessSetId{0}, tensor.memory.span()), absl::OkStatus());
    const int32_t index = context.object.device();
    const DeviceMemory word = DeviceMemory::AllocatePinned(device, index, 4).value();
    auto* const closed = new (word.data()) std::atomic<uint32_t>(1);
    const DeviceKernels kernels = DeviceKernels::Load(device, index).value();
    bool first = false, second = false;
    std::atomic<bool> released = false;
    CollectiveArgs args = Sum(tensor);
    args.before = [&](DeviceKernels&, CudaStream stream) { return kernels.Gate(closed, stream); };
    bool enqueued = false;
    args.enqueued = [&](const std::shared_ptr<DeviceEvent>&) { enqueued = true; };
    ASSERT_TRUE(context.object.Launch(args, [&](absl::Status) { first = true; }).ok());
    context.DriveUntil([&] { return enqueued; });
    context.object.ReleaseMemory(ProcessSetId{0}, tensor.memory.span(), [&] { released = true; });
    CollectiveArgs next = Sum(tensor);
    next.enqueued = [&](const std::shared_ptr<DeviceEvent>&) { EXPECT_TRUE(released); };
    ASSERT_TRUE(context.object.Launch(next, [&](absl::Status) { second = true; }).ok());
    for (int i = 0; i < 100; ++i) context.object.Progress();
    EXPECT_FALSE(released);
    *closed = 0;
    context.DriveUntil([&] { return first && second; });
    EXPECT_TRUE(released);
    EXPECT_EQ(context.object.registered_bytes(), 0);
  });
}

TEST_F(ProgramMemoryTest, WhatNcclRefusesEndsTheDataPlane) {
  SKIP_WHERE_NCCL_LACKS("ncclCommRegister");
  RunTwo([&](Context& context) {
    Tensor tensor = NewTensor(context, 10, 1.0f);
    ASSERT_EQ(RunOne(context, Sum(tensor)), absl::OkStatus());
    if (context.rank == Rank{0}) SetFakeNccl("register_error", 2);
    if (context.rank == Rank{0}) over_ = true;
    while (!over_) std::this_thread::yield();
    EXPECT_FALSE(Register(context, tensor, ProcessSetId{0}, tensor.memory.span()).ok());
  });
}

TEST_F(ProgramMemoryTest, WhereNotAllRanksRegisterNobodyRegistersBuffersEither) {
  const long before = FakeNcclRegisteredBuffers();
  RunTwo([&](Context& context) {
    context.object.LeaveUnregistered(ProcessSetId{0});
    Tensor tensor = NewTensor(context, 10, 1.0f);
    ASSERT_TRUE(context.object.AllocateFusionBuffer(1 << 20).ok());
    ASSERT_EQ(RunOne(context, Sum(tensor)), absl::OkStatus());
    EXPECT_EQ(context.object.registered_bytes(), 0);
  });
  EXPECT_EQ(FakeNcclRegisteredBuffers(), before);
}

}  // namespace
}  // namespace coordd
