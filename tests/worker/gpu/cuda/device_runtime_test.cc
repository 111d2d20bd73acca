#include "worker/gpu/cuda/device_runtime.h"

#include <algorithm>

#include <gmock/gmock.h>

#include "tests/support/gpu/fake_gpu.h"
#include "worker/gpu/cuda/device_handles.h"

namespace coordd {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::MatchesRegex;

class DeviceRuntimeTest : public testing::Test {
 protected:
  ~DeviceRuntimeTest() override {
    SetFakeCuda("devices", 8);
    SetFakeCuda("init_error", 0);
    SetFakeCuda("memory_limit", 0);
    SetFakeCuda("mig", 0);
  }
};

TEST_F(DeviceRuntimeTest, NamesTheDevicesByUuid) {
  SetFakeCuda("devices", 2);
  const auto runtime = DeviceRuntime::Open(FakeCudaPath()).value();
  ASSERT_EQ(runtime->device_count(), 2);
  EXPECT_EQ(runtime->driver_version(), "13.0");
  EXPECT_EQ(runtime->identity(1).uuid, "GPU-00102030-4050-6070-8090-a0b0c0d0e001");
  EXPECT_EQ(runtime->identity(1).model, "Fake GPU");
  EXPECT_EQ(runtime->identity(1).index, 1);
  EXPECT_EQ(runtime->identity(1).capability_major, 9);
}

TEST_F(DeviceRuntimeTest, ASliceIsNamedAsOne) {
  SetFakeCuda("mig", 1);
  const auto runtime = DeviceRuntime::Open(FakeCudaPath()).value();
  EXPECT_EQ(runtime->identity(1).uuid, "MIG-00102030-4050-6070-8090-a0b0c0d0e001");
}

TEST_F(DeviceRuntimeTest, ALibraryThatIsNotThereIsNamed) {
  const absl::Status status = DeviceRuntime::Open("libno-such-driver.so.1").status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("libno-such-driver.so.1"));
}

TEST_F(DeviceRuntimeTest, WhatALibraryLacksIsNamed) {
  const absl::Status status = DeviceRuntime::Open("libc.so.6").status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("libc.so.6 has no cuInit, "));
}

TEST_F(DeviceRuntimeTest, ADriverThatDoesNotWorkIsQuoted) {
  SetFakeCuda("init_error", 100);
  const absl::Status status = DeviceRuntime::Open(FakeCudaPath()).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(status.message(), "cuInit: no CUDA-capable device is detected (CUDA_ERROR_NO_DEVICE)");
}

TEST_F(DeviceRuntimeTest, ADriverWithoutDevicesIsNoRuntime) {
  SetFakeCuda("devices", 0);
  EXPECT_EQ(DeviceRuntime::Open(FakeCudaPath()).status().message(), "the driver sees no device");
}

TEST_F(DeviceRuntimeTest, TellsWhereMemoryIs) {
  const auto runtime = DeviceRuntime::Open(FakeCudaPath()).value();
  const DeviceMemory device = DeviceMemory::Allocate(*runtime, 3, 100).value();
  const DeviceMemory pinned = DeviceMemory::AllocatePinned(*runtime, 0, 100).value();
  int own = 0;
  const DeviceScope scope = DeviceScope::Enter(*runtime, 0).value();
  EXPECT_EQ(runtime->PlaceOf(device.data() + 99).kind, MemoryKind::kCuda);
  EXPECT_EQ(runtime->PlaceOf(device.data() + 99).device, 3);
  EXPECT_EQ(runtime->PlaceOf(pinned.data()).kind, MemoryKind::kHost);
  EXPECT_TRUE(runtime->PlaceOf(pinned.data()).pinned);
  EXPECT_EQ(runtime->PlaceOf(&own).kind, MemoryKind::kHost);
  EXPECT_FALSE(runtime->PlaceOf(&own).pinned);
}

TEST_F(DeviceRuntimeTest, MemoryThatIsNotThereIsResourceExhaustedAndNamesTheDevice) {
  SetFakeCuda("memory_limit", 1000);
  const auto runtime = DeviceRuntime::Open(FakeCudaPath()).value();
  const absl::Status status = DeviceMemory::Allocate(*runtime, 1, 1001).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("device 1 (GPU-"), HasSubstr("CUDA_ERROR_OUT_OF_MEMORY")));
}

TEST_F(DeviceRuntimeTest, ADeviceThatIsNotThereIsRefusedWithThoseThatAre) {
  const auto runtime = DeviceRuntime::Open(FakeCudaPath()).value();
  const absl::Status status = DeviceScope::Enter(*runtime, 8).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), MatchesRegex("device 8, expected 0 to 7: .*"));
}

TEST_F(DeviceRuntimeTest, EventsOrderStreams) {
  const auto runtime = DeviceRuntime::Open(FakeCudaPath()).value();
  DeviceStream first = DeviceStream::Create(*runtime, 0).value();
  DeviceStream second = DeviceStream::Create(*runtime, 0).value();
  const DeviceMemory from = DeviceMemory::AllocatePinned(*runtime, 0, 1 << 20).value();
  const DeviceMemory between = DeviceMemory::Allocate(*runtime, 0, 1 << 20).value();
  const DeviceMemory to = DeviceMemory::AllocatePinned(*runtime, 0, 1 << 20).value();
  std::fill(from.span().begin(), from.span().end(), std::byte{42});
  DeviceEvent copied = DeviceEvent::Create(*runtime, 0).value();
  DeviceEvent back = DeviceEvent::Create(*runtime, 0).value();
  ASSERT_TRUE(CopyAsync(*runtime, 0, between.data(), from.data(), 1 << 20, first.get()).ok());
  ASSERT_TRUE(copied.Record(first.get()).ok());
  ASSERT_TRUE(second.Wait(copied.get()).ok());
  ASSERT_TRUE(CopyAsync(*runtime, 0, to.data(), between.data(), 1 << 20, second.get()).ok());
  ASSERT_TRUE(back.Record(second.get()).ok());
  while (!back.Happened().value()) std::this_thread::yield();
  EXPECT_TRUE(std::all_of(to.span().begin(), to.span().end(),
                          [](std::byte b) { return b == std::byte{42}; }));
}

TEST_F(DeviceRuntimeTest, EverythingEnds) {
  const long before = FakeCudaLiveObjects();
  {
    const auto runtime = DeviceRuntime::Open(FakeCudaPath()).value();
    const DeviceStream stream = DeviceStream::Create(*runtime, 0).value();
    const DeviceEvent event = DeviceEvent::Create(*runtime, 1).value();
    const DeviceMemory memory = DeviceMemory::Allocate(*runtime, 2, 10).value();
    EXPECT_GT(FakeCudaLiveObjects(), before);
  }
  EXPECT_EQ(FakeCudaLiveObjects(), before);
}

}  // namespace
}  // namespace coordd
