// Tensors on a GPU, through a whole worker of a job of one, with a driver that is a stand-in.
#include <atomic>
#include <memory>
#include <string>

#include "tests/worker/support/device_tensors_fixture.h"
#include "worker/gpu/cuda/device_kernels.h"
#include "worker/interfaces/idle_wait.h"

namespace coordd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST_F(DeviceTensorsTest, IsReducedWhereItIs) {
  const auto worker = Start();
  EXPECT_EQ(opened_, 0);  // who has no tensors on a GPU does not initialise the driver
  float* const values = NewTensor(3.0f);
  Submission submission = Of(CollectiveKind::kAllreduce, "grad", values, values);
  submission.spec.postscale_factor = 2.0;
  const auto work = worker->Submit(submission);
  ASSERT_THAT(work, IsOk());
  PlanWhatIsReady();
  ASSERT_THAT(Await(*work), IsOk());
  EXPECT_EQ(values[0], 6.0f);
  EXPECT_EQ(values[3], 6.0f);
  EXPECT_EQ((*work)->result().generation, Generation{1});
  EXPECT_EQ(opened_, 1);
  Stop(*worker);
}

TEST_F(DeviceTensorsTest, IsReadWhenTheCallersStreamHasMadeIt) {
  const auto worker = Start();
  DeviceStream stream = DeviceStream::Create(*device_, kDevice).value();
  DeviceKernels kernels = DeviceKernels::Load(*device_, kDevice).value();
  const DeviceMemory word = DeviceMemory::AllocatePinned(*device_, kDevice, 4).value();
  auto* const closed = new (word.data()) std::atomic<uint32_t>(1);
  float* const values = NewTensor(1.0f);
  float* const made = NewTensor(5.0f);
  float* const sum = NewTensor(0.0f);
  ASSERT_TRUE(kernels.Gate(closed, stream.get()).ok());
  ASSERT_TRUE(CopyAsync(*device_, kDevice, values, made, 16, stream.get()).ok());
  Submission submission = Of(CollectiveKind::kAllreduce, "grad", values, sum);
  submission.stream = reinterpret_cast<uintptr_t>(stream.get());
  const auto work = worker->Submit(submission);  // does not wait for the stream
  ASSERT_THAT(work, IsOk());
  EXPECT_FALSE((*work)->done());
  *closed = 0;
  PlanWhatIsReady();
  ASSERT_THAT(Await(*work), IsOk());
  EXPECT_EQ(sum[2], 5.0f);
  Stop(*worker);
}

TEST_F(DeviceTensorsTest, AResultThatTheLibraryMakesIsOnTheDeviceAndOutlivesTheWorker) {
  auto worker = Start();
  float* const values = NewTensor(7.0f);
  auto work = worker->Submit(Of(CollectiveKind::kAllgather, "rows", values, nullptr));
  ASSERT_THAT(work, IsOk());
  PlanWhatIsReady();
  ASSERT_THAT(Await(*work), IsOk());
  const std::shared_ptr<std::byte[]> result = (*work)->result().owned_output;
  EXPECT_EQ((*work)->result().output_bytes, 16);
  Stop(*worker);
  worker.reset();
  work = absl::CancelledError("released");
  EXPECT_EQ(FakeCudaDeviceOf(result.get()), kDevice);
  EXPECT_EQ(reinterpret_cast<const float*>(result.get())[3], 7.0f);
}

TEST_F(DeviceTensorsTest, AnOutputThatIsTooSmallIsNotWrittenTo) {
  const auto worker = Start();
  float* const values = NewTensor(7.0f);
  float* const output = NewTensor(1.0f);
  Submission submission = Of(CollectiveKind::kAllgather, "rows", values, output);
  submission.output_capacity_bytes = 12;
  const auto work = worker->Submit(submission);
  ASSERT_THAT(work, IsOk());
  PlanWhatIsReady();
  EXPECT_THAT(Await(*work), StatusIs(absl::StatusCode::kInvalidArgument,
                                     AllOf(HasSubstr("16 bytes"), HasSubstr("at most the 12"))));
  EXPECT_EQ(output[0], 1.0f);
  Stop(*worker);
}

TEST_F(DeviceTensorsTest, AnAddressOfTheHostIsRefusedAndTheNameIsFreeAgain) {
  const auto worker = Start();
  float own[4] = {1, 1, 1, 1};
  const Submission wrong = Of(CollectiveKind::kAllreduce, "grad", own, own);
  EXPECT_THAT(worker->Submit(wrong),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("tensor grad"), HasSubstr("no device knows"),
                             HasSubstr("expected memory of device 2"))));
  float* const values = NewTensor(1.0f);
  const auto work = worker->Submit(Of(CollectiveKind::kAllreduce, "grad", values, values));
  ASSERT_THAT(work, IsOk());
  EXPECT_THAT(worker->Submit(Of(CollectiveKind::kAllreduce, "grad", values, values)),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("grad")));
  PlanWhatIsReady();
  EXPECT_THAT(Await(*work), IsOk());
  Stop(*worker);
}

TEST_F(DeviceTensorsTest, MemoryOfAnotherDeviceIsNamed) {
  const auto worker = Start();
  float* const values = NewTensor(1.0f);
  Submission submission = Of(CollectiveKind::kAllreduce, "grad", values, values);
  submission.device = 0;
  EXPECT_THAT(worker->Submit(submission),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("on device 2"), HasSubstr("expected memory of device 0"))));
  Stop(*worker);
}

TEST_F(DeviceTensorsTest, AStreamThatNeverComesSoFarIsTheTensorsError) {
  const auto worker = Start();
  DeviceStream stream = DeviceStream::Create(*device_, kDevice).value();
  DeviceKernels kernels = DeviceKernels::Load(*device_, kDevice).value();
  const DeviceMemory word = DeviceMemory::AllocatePinned(*device_, kDevice, 4).value();
  auto* const closed = new (word.data()) std::atomic<uint32_t>(1);
  ASSERT_TRUE(kernels.Gate(closed, stream.get()).ok());
  float* const values = NewTensor(1.0f);
  Submission submission = Of(CollectiveKind::kAllreduce, "grad", values, values);
  submission.stream = reinterpret_cast<uintptr_t>(stream.get());
  submission.timeout = absl::Milliseconds(50);
  const auto work = worker->Submit(submission);
  ASSERT_THAT(work, IsOk());
  EXPECT_THAT(Await(*work), StatusIs(absl::StatusCode::kDeadlineExceeded,
                                     AllOf(HasSubstr("tensor grad"), HasSubstr("not ready"))));
  *closed = 0;
  // Its name is free, and what it held is used again.
  submission.timeout = kHangLimit;
  const auto again = worker->Submit(submission);
  ASSERT_THAT(again, IsOk());
  PlanWhatIsReady();
  EXPECT_THAT(Await(*again), IsOk());
  Stop(*worker);
}

TEST_F(DeviceTensorsTest, WhatIsPendingWhenTheWorkerEndsIsCancelled) {
  const auto worker = Start();
  float* const values = NewTensor(1.0f);
  const auto work = worker->Submit(Of(CollectiveKind::kAllreduce, "grad", values, values));
  ASSERT_THAT(work, IsOk());
  Stop(*worker);
  EXPECT_THAT(Await(*work), StatusIs(absl::StatusCode::kCancelled, HasSubstr("tensor grad")));
  EXPECT_FALSE(worker->Submit(Of(CollectiveKind::kAllreduce, "more", values, values)).ok());
}

TEST_F(DeviceTensorsTest, AGroupIsForwardedWhole) {
  const auto worker = Start();
  float* const first = NewTensor(1.0f);
  float* const second = NewTensor(2.0f);
  const auto works =
      worker->SubmitGroup("layer", {Of(CollectiveKind::kAllreduce, "weight", first, first),
                                    Of(CollectiveKind::kAllreduce, "bias", second, second)});
  ASSERT_THAT(works, IsOk());
  PlanWhatIsReady();
  for (const auto& work : *works) EXPECT_THAT(Await(work), IsOk());
  Stop(*worker);
}

TEST_F(DeviceTensorsTest, PinnedMemoryThatCannotBeHadIsTheTensorsError) {
  const auto worker = Start();
  float* const values = NewTensor(1.0f);
  auto work = worker->Submit(Of(CollectiveKind::kAllgather, "rows", values, nullptr));
  ASSERT_THAT(work, IsOk());
  SetFakeCuda("memory_limit", 20);  // nothing is left for the result
  PlanWhatIsReady();
  EXPECT_THAT(Await(*work), StatusIs(absl::StatusCode::kResourceExhausted,
                                     AllOf(HasSubstr("device 2"), HasSubstr("out of memory"))));
  Stop(*worker);
}

TEST_F(DeviceTensorsTest, WhatNcclCannotReduceIsStaged) {
  const auto worker = Start(/*with_devices=*/true, /*with_nccl=*/true);
  float* const values = NewTensor(1.0f);
  Submission submission = Of(CollectiveKind::kAllreduce, "shorts", values, values);
  submission.spec.dtype = DataType::kInt16;
  const auto work = worker->Submit(submission);
  ASSERT_THAT(work, IsOk());
  PlanWhatIsReady();
  // The host carries it: there is nothing to wait for on the device.
  const auto event = (*work)->AwaitEnqueued(Clock::Real().Now() + kHangLimit);
  ASSERT_THAT(event, IsOk());
  EXPECT_EQ(*event, nullptr);
  EXPECT_TRUE((*work)->done());
  Stop(*worker);
}

class Float8OnDevicesTest : public DeviceTensorsTest, public ::testing::WithParamInterface<long> {
 protected:
  Float8OnDevicesTest() { SetFakeCuda("capability", GetParam()); }
  ~Float8OnDevicesTest() override { SetFakeCuda("capability", 9); }
};

// A job of one agrees with itself at once, but not before its first tensor is there.
TEST_P(Float8OnDevicesTest, AreStagedWhereNcclDoesNotReduceIt) {
  const auto worker = Start(/*with_devices=*/true, /*with_nccl=*/true);
  const bool by_nccl = NcclReducesFloat8(FakeNcclVersion(), static_cast<int>(GetParam()));
  DeviceStream stream = DeviceStream::Create(*device_, kDevice).value();
  DeviceKernels kernels = DeviceKernels::Load(*device_, kDevice).value();
  const DeviceMemory word = DeviceMemory::AllocatePinned(*device_, kDevice, 4).value();
  auto* const closed = new (word.data()) std::atomic<uint32_t>(0);
  float* const values = NewTensor(1.0f);
  for (const char* name : {"first", "second"}) {
    // What the device cannot have done yet has an event. What is staged is complete.
    *closed = by_nccl ? 1 : 0;
    ASSERT_TRUE(kernels.Gate(closed, stream.get()).ok());
    Submission submission = Of(CollectiveKind::kAllreduce, name, values, values);
    submission.stream = reinterpret_cast<uintptr_t>(stream.get());
    submission.spec.dtype = DataType::kFloat8E5m2;
    submission.spec.postscale_factor = 0.5;  // of 1.0f, the bytes 00 00 80 3f
    const auto work = worker->Submit(submission);
    ASSERT_THAT(work, IsOk());
    PlanWhatIsReady();
    const auto event = (*work)->AwaitEnqueued(Clock::Real().Now() + kHangLimit);
    ASSERT_THAT(event, IsOk());
    EXPECT_EQ(*event != nullptr, by_nccl);
    *closed = 0;
    EXPECT_THAT(Await(*work), IsOk());
  }
  const auto* const bytes = reinterpret_cast<const uint8_t*>(values);
  // The first four bytes are the tensor; halved twice, an exponent of e5m2 each.
  EXPECT_EQ(bytes[3], 0x3f - 8);
  EXPECT_EQ(TakeBrokenNcclRule(), "");
  Stop(*worker);
}

INSTANTIATE_TEST_SUITE_P(Capabilities, Float8OnDevicesTest, ::testing::Values(8L, 9L));

TEST_F(DeviceTensorsTest, WithoutADriverTheCallerIsToldWhy) {
  const auto worker = Start(/*with_devices=*/false);
  float* const values = NewTensor(1.0f);
  EXPECT_THAT(worker->Submit(Of(CollectiveKind::kAllreduce, "grad", values, values)),
              StatusIs(absl::StatusCode::kUnimplemented,
                       AllOf(HasSubstr("tensor grad: device memory, but this process has no CUDA"),
                             HasSubstr("libno-such-driver.so.1"))));
  Stop(*worker);
}

}  // namespace
}  // namespace coordd
