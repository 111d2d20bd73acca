// Memory of a GPU that a program registers, through a whole worker.
#include <thread>

#include "tests/worker/support/device_tensors_fixture.h"
#include "worker/gpu/nccl/known_memory.h"

namespace coordd {
namespace {

using ::testing::HasSubstr;

class DeviceMemoryTest : public DeviceTensorsTest {
 protected:
  // Plans the marker of the call meanwhile.
  absl::Status Register(Worker& worker, void* memory, int64_t bytes = 16) {
    absl::Status status;
    std::thread caller([&] {
      status = worker.RegisterDeviceMemory({ProcessSetId{0}, kDevice, memory, bytes}, kHangLimit);
    });
    PlanWhatIsReady();
    caller.join();
    return status;
  }
  // The same where the ranks first say what they have.
  absl::Status RegisterWhereThereAreWindows(Worker& worker, void* memory, int64_t bytes) {
    absl::Status status;
    std::thread caller([&] {
      status = worker.RegisterDeviceMemory({ProcessSetId{0}, kDevice, memory, bytes}, kHangLimit);
    });
    PlanWhatIsReady(1, v1::MEMORY_KIND_HOST);
    PlanWhatIsReady();
    caller.join();
    return status;
  }
  absl::Status RegisterAlone(Worker& worker, void* memory, int64_t bytes = 16,
                             int32_t device = kDevice) {
    return worker.RegisterDeviceMemory({ProcessSetId{0}, device, memory, bytes}, kHangLimit);
  }
};

TEST_F(DeviceMemoryTest, IsRegisteredAtItsPlaceInTheOrderAndFreeWhenTheCallReturns) {
  SKIP_WHERE_NCCL_LACKS("ncclCommRegister");
  const auto worker = Start(/*with_devices=*/true, /*with_nccl=*/true);
  float* const values = NewTensor(1.0f);
  const long before = FakeNcclRegisteredBuffers();
  ASSERT_THAT(Register(*worker, values), IsOk());
  EXPECT_EQ(FakeNcclRegisteredBuffers(), before + 1);
  EXPECT_EQ(values[0], 1.0f);
  // Not twice, and nothing that overlaps.
  EXPECT_THAT(RegisterAlone(*worker, values + 1, 4),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("overlaps with 16 bytes")));
  EXPECT_THAT(worker->UnregisterDeviceMemory(ProcessSetId{0}, values, kHangLimit), IsOk());
  EXPECT_THAT(worker->UnregisterDeviceMemory(ProcessSetId{0}, values, kHangLimit),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not registered")));
  ASSERT_THAT(Register(*worker, values), IsOk());
  EXPECT_EQ(FakeNcclRegisteredBuffers(), before + 2);
  Stop(*worker);
}

TEST_F(DeviceMemoryTest, EndsWithTheGenerationAndIsRegisteredAnew) {
  SKIP_WHERE_NCCL_LACKS("ncclCommRegister");
  options_.on_failure = OnFailure::kRaise;
  const auto worker = Start(/*with_devices=*/true, /*with_nccl=*/true);
  float* const values = NewTensor(1.0f);
  ASSERT_THAT(Register(*worker, values), IsOk());
  ChangeGeneration();
  ASSERT_THAT(worker->AwaitGeneration(Clock::Real().Now() + kHangLimit), IsOk());
  EXPECT_THAT(worker->UnregisterDeviceMemory(ProcessSetId{0}, values, kHangLimit),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not registered")));
  planned_ = 0;
  ASSERT_THAT(Register(*worker, values), IsOk());
  Stop(*worker);
}

TEST_F(DeviceMemoryTest, WhatWasNotLetGoInTimeIsWaitedForByAnotherCall) {
  SKIP_WHERE_NCCL_LACKS("ncclCommRegister");
  const auto worker = Start(/*with_devices=*/true, /*with_nccl=*/true);
  float* const values = NewTensor(1.0f);
  ASSERT_THAT(Register(*worker, values), IsOk());
  const auto unregister = [&](absl::Duration timeout) {
    return worker->UnregisterDeviceMemory(ProcessSetId{0}, values, timeout);
  };
  const absl::Status first = unregister(absl::Nanoseconds(1));
  if (absl::IsDeadlineExceeded(first)) {
    EXPECT_THAT(unregister(kHangLimit), IsOk());
  } else {
    EXPECT_THAT(first, IsOk());
  }
  EXPECT_THAT(unregister(kHangLimit),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not registered")));
  EXPECT_FALSE(KnownMemory::OfProcess().Knows(ProcessSetId{0},
                                              {reinterpret_cast<const std::byte*>(values), 16}));
  Stop(*worker);
}

TEST_F(DeviceMemoryTest, NothingIsKnownWhenACallHasReturnedInAGenerationThatIsOver) {
  SKIP_WHERE_NCCL_LACKS("ncclCommRegister");
  options_.on_failure = OnFailure::kRaise;
  const auto worker = Start(/*with_devices=*/true, /*with_nccl=*/true);
  float* const values = NewTensor(1.0f);
  const KnownMemory::Region region(reinterpret_cast<const std::byte*>(values), 16);
  ASSERT_THAT(Register(*worker, values), IsOk());
  EXPECT_TRUE(KnownMemory::OfProcess().Knows(ProcessSetId{0}, region));
  ChangeGeneration();
  EXPECT_THAT(worker->UnregisterDeviceMemory(ProcessSetId{0}, values, kHangLimit), IsOk());
  EXPECT_FALSE(KnownMemory::OfProcess().Knows(ProcessSetId{0}, region));
  Stop(*worker);
}

TEST_F(DeviceMemoryTest, WhereThereAreWindowsTheRanksFirstSayWhatTheyHave) {
  SKIP_WHERE_NCCL_LACKS("ncclCommWindowRegister");
  options_.symmetric_gpu_windows = true;
  const auto worker = Start(/*with_devices=*/true, /*with_nccl=*/true);
  const long windows = FakeNcclWindows(), registered = FakeNcclRegisteredBuffers();
  testing::internal::CaptureStderr();
  // Not coordd_alloc_device's, which is of another driver here.
  float *const values = NewTensor(1.0f), *const others = NewTensor(1.0f);
  ASSERT_THAT(RegisterWhereThereAreWindows(*worker, values, 16), IsOk());
  ASSERT_THAT(RegisterWhereThereAreWindows(*worker, others, 16), IsOk());
  const std::string said = testing::internal::GetCapturedStderr();
  const std::string why = "rank 0 gave 16 bytes that do not begin memory of coordd_alloc_device";
  EXPECT_THAT(said, HasSubstr(why));
  EXPECT_EQ(said.find(why), said.rfind(why));  // once
  EXPECT_EQ(FakeNcclWindows(), windows + 1);   // the fusion buffer
  EXPECT_EQ(FakeNcclRegisteredBuffers(), registered + 2);
  Stop(*worker);
}

TEST_F(DeviceMemoryTest, IsRefusedInWordsWhereItCannotBe) {
  float* const values = NewTensor(1.0f);
  {
    const auto worker = Start(/*with_devices=*/true, /*with_nccl=*/true);
    float host = 0;
    EXPECT_THAT(RegisterAlone(*worker, &host, 4),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no device knows")));
    EXPECT_THAT(
        RegisterAlone(*worker, values, 16, 17),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("device 17, expected 0 to")));
    Stop(*worker);
  }
  options_.register_gpu_buffers = false;
  const auto worker = Start(/*with_devices=*/true, /*with_nccl=*/true);
  EXPECT_THAT(RegisterAlone(*worker, values),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("COORDD_GPU_REGISTER is 0")));
  Stop(*worker);
}

TEST_F(DeviceMemoryTest, WithoutNcclThereIsNothingToRegisterWith) {
  const auto worker = Start(/*with_devices=*/true, /*with_nccl=*/false);
  EXPECT_THAT(RegisterAlone(*worker, NewTensor(1.0f)),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("not all ranks have")));
  Stop(*worker);
}

}  // namespace
}  // namespace coordd
