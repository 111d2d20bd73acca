// coordd's kernels, run from their own source on the host, through the launches that a GPU gets;
// or, by tests/gpu/run, on one.
#include "worker/gpu/cuda/device_kernels.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <tuple>

#include "tests/support/gpu/fake_gpu.h"
#include "tests/worker/support/reference.h"
#include "worker/gpu/cuda/device_handles.h"
#include "worker/interfaces/idle_wait.h"
#include "worker/numeric/half.h"
#include "worker/numeric/reduce_kernels.h"

namespace coordd {
namespace {

// Also of no bytes, which have no address.
bool Holds(const void* data, const Bytes& expected) {
  return std::equal(expected.begin(), expected.end(), static_cast<const std::byte*>(data));
}

// A device with a stream, and pinned memory, which both sides read.
class DeviceKernelsTest : public testing::Test {
 protected:
  std::byte* NewMemory(int64_t size_bytes) {
    memory_.push_back(DeviceMemory::AllocatePinned(*runtime_, 0, size_bytes).value());
    return memory_.back().data();
  }
  std::byte* NewMemory(const Bytes& contents) {
    std::byte* const data = NewMemory(static_cast<int64_t>(contents.size()));
    if (!contents.empty()) std::memcpy(data, contents.data(), contents.size());
    return data;
  }
  void Await() {
    DeviceEvent event = DeviceEvent::Create(*runtime_, 0).value();
    ASSERT_TRUE(event.Record(stream_.get()).ok());
    IdleWait idle(1, 1);
    while (!event.Happened().value()) idle.Wait();
  }

  std::unique_ptr<DeviceRuntime> runtime_ = DeviceRuntime::Open(TestCudaPath()).value();
  DeviceStream stream_ = DeviceStream::Create(*runtime_, 0).value();
  DeviceKernels kernels_ = DeviceKernels::Load(*runtime_, 0).value();
  std::vector<DeviceMemory> memory_;
};

TEST_F(DeviceKernelsTest, CopiesTensorsOfAnySizeAndAlignmentInOneCall) {
  std::vector<DeviceRow> rows;
  std::vector<Bytes> expected;
  // More rows than one launch takes; sizes around what one access moves.
  for (int32_t i = 0; i < 150; ++i) {
    const int64_t size = i % 40, from_offset = i % 5 == 0 ? 0 : i % 17, to_offset = i % 3 * 4;
    const Bytes bytes = TestInput(DataType::kUint8, i, size, 1);
    std::byte* const from = NewMemory(size + from_offset) + from_offset;
    std::byte* const to = NewMemory(size + to_offset) + to_offset;
    std::copy(bytes.begin(), bytes.end(), from);
    rows.push_back({from, to, static_cast<uint64_t>(size)});
    expected.push_back(bytes);
  }
  ASSERT_TRUE(kernels_.Copy(rows, stream_.get()).ok());
  Await();
  for (size_t i = 0; i < rows.size(); ++i)
    EXPECT_TRUE(Holds(rows[i].to, expected[i])) << "row " << i;
}

TEST_F(DeviceKernelsTest, WritesNothingBesideWhatItCopies) {
  const Bytes from(100, std::byte{1});
  for (int64_t size : {1, 15, 16, 17, 63, 64}) {
    std::byte* const to = NewMemory(Bytes(128, std::byte{7}));
    const DeviceRow row{NewMemory(from), to + 16, static_cast<uint64_t>(size)};
    ASSERT_TRUE(kernels_.Copy({&row, 1}, stream_.get()).ok());
    Await();
    EXPECT_EQ(to[15], std::byte{7});
    EXPECT_EQ(to[16 + size - 1], std::byte{1});
    EXPECT_EQ(to[16 + size], std::byte{7});
  }
}

using ScaleCase = std::tuple<DataType, double>;
class ScaleTest : public DeviceKernelsTest, public testing::WithParamInterface<ScaleCase> {};

TEST_P(ScaleTest, GivesTheBitsOfTheHostsKernel) {
  const auto [dtype, factor] = GetParam();
  for (int64_t count : {0, 1, 7, 16, 1003}) {
    const Bytes input = TestInput(dtype, 3, count, 2);
    Bytes expected(input.size());
    CopyScaled(dtype, factor, expected.data(), input.data(), count);
    for (int64_t offset : {int64_t{0}, SizeOf(dtype)}) {  // in wide accesses and one by one
      std::byte* const from = NewMemory(static_cast<int64_t>(input.size()) + offset) + offset;
      std::byte* const to = NewMemory(static_cast<int64_t>(input.size()) + 1);
      if (count > 0) std::memcpy(from, input.data(), input.size());
      const DeviceRow row{from, to, static_cast<uint64_t>(count)};
      ASSERT_TRUE(kernels_.Scale(dtype, dtype, factor, {&row, 1}, stream_.get()).ok());
      Await();
      EXPECT_TRUE(Holds(to, expected))
          << Name(dtype) << " times " << factor << ", " << count << " elements at " << offset;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EveryDtype, ScaleTest,
                         testing::Combine(testing::ValuesIn(kAllDataTypes),
                                          testing::Values(0.25, -3.0, 0.0, 1e30)));

TEST_F(DeviceKernelsTest, ScalesInPlace) {
  const Bytes input = TestInput(DataType::kFloat32, 0, 1001, 4);
  Bytes expected = input;
  Scale(DataType::kFloat32, 0.125, expected.data(), 1001);
  std::byte* const data = NewMemory(input);
  const DeviceRow row{data, data, 1001};
  ASSERT_TRUE(
      kernels_.Scale(DataType::kFloat32, DataType::kFloat32, 0.125, {&row, 1}, stream_.get()).ok());
  Await();
  EXPECT_TRUE(Holds(data, expected));
}

TEST_F(DeviceKernelsTest, CastsToHalfPrecisionAndBack) {
  constexpr uint64_t kCount = 1003;
  const Bytes input = TestInput(DataType::kFloat32, 1, kCount, 5);
  for (DataType half : {DataType::kFloat16, DataType::kBfloat16}) {
    std::byte* const from = NewMemory(input);
    std::byte* const narrow = NewMemory(kCount * 2);
    std::byte* const back = NewMemory(kCount * 4);
    const DeviceRow down{from, narrow, kCount}, up{narrow, back, kCount};
    ASSERT_TRUE(kernels_.Scale(DataType::kFloat32, half, 0.5, {&down, 1}, stream_.get()).ok());
    ASSERT_TRUE(kernels_.Scale(half, DataType::kFloat32, 2.0, {&up, 1}, stream_.get()).ok());
    Await();
    for (int64_t i = 0; i < static_cast<int64_t>(kCount); ++i) {
      const float value = static_cast<float>(ElementAt(DataType::kFloat32, input.data(), i));
      const float halved = value * 0.5f;
      const float rounded = half == DataType::kFloat16
                                ? Float16ToFloat32(Float32ToFloat16(halved))
                                : Bfloat16ToFloat32(Float32ToBfloat16(halved));
      ASSERT_EQ(ElementAt(DataType::kFloat32, back, i), rounded * 2.0f) << Name(half) << " " << i;
    }
  }
}

TEST_F(DeviceKernelsTest, RefusesCastsThatItDoesNotHave) {
  const absl::Status status =
      kernels_.Scale(DataType::kFloat64, DataType::kFloat16, 1.0, {}, stream_.get());
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(testing::HasSubstr("float64"), testing::HasSubstr("float16")));
}

// A driver may load a function when it is asked for, and wait for the whole device to do so.
TEST_F(DeviceKernelsTest, AreLookedUpOnceForADevice) {
  if (TestCudaPath() != FakeCudaPath()) GTEST_SKIP() << "a driver does not count";
  const long asked = FakeCudaFunctionsAsked();
  DeviceKernels others = DeviceKernels::Load(*runtime_, 0).value();
  for (int type = 1; type <= static_cast<int>(DataType::kFloat8E5m2); ++type) {
    const auto dtype = static_cast<DataType>(type);
    EXPECT_TRUE(others.Scale(dtype, dtype, 1.0, {}, stream_.get()).ok()) << Name(dtype);
  }
  for (DataType half : {DataType::kFloat16, DataType::kBfloat16}) {
    EXPECT_TRUE(others.Scale(DataType::kFloat32, half, 1.0, {}, stream_.get()).ok());
    EXPECT_TRUE(others.Scale(half, DataType::kFloat32, 1.0, {}, stream_.get()).ok());
  }
  EXPECT_TRUE(others.Copy({}, stream_.get()).ok());
  auto* const word = new (NewMemory(4)) std::atomic<uint32_t>(0);
  EXPECT_TRUE(others.Gate(word, stream_.get()).ok());
  Await();
  EXPECT_EQ(FakeCudaFunctionsAsked(), asked);
}

TEST_F(DeviceKernelsTest, TheGateHoldsItsStreamWhileItIsClosed) {
  auto* const word = new (NewMemory(4)) std::atomic<uint32_t>(1);
  ASSERT_TRUE(kernels_.Gate(word, stream_.get()).ok());
  DeviceEvent behind = DeviceEvent::Create(*runtime_, 0).value();
  ASSERT_TRUE(behind.Record(stream_.get()).ok());
  EXPECT_FALSE(behind.Happened().value());
  *word = 2;
  Await();
  EXPECT_TRUE(behind.Happened().value());
}

TEST_F(DeviceKernelsTest, TheSealOverwritesNothingButWhatAnAbortedCollectiveHasLeft) {
  auto* const word = new (NewMemory(4)) std::atomic<uint32_t>(0);
  // More outputs than one launch takes.
  std::vector<std::byte*> outputs;
  std::vector<DeviceRow> rows;
  for (int i = 0; i < 130; ++i) {
    outputs.push_back(NewMemory(Bytes(static_cast<size_t>(i % 7 + 1), std::byte{5})));
    rows.push_back({nullptr, outputs.back(), static_cast<uint64_t>(i % 7 + 1)});
  }
  ASSERT_TRUE(kernels_.Seal(word, rows, stream_.get(), absl::Minutes(10)).ok());
  Await();
  for (int i = 0; i < 130; ++i) EXPECT_EQ(outputs[static_cast<size_t>(i)][i % 7], std::byte{5});
  word->store(1);
  ASSERT_TRUE(kernels_.Seal(word, rows, stream_.get(), absl::Minutes(10)).ok());
  DeviceEvent behind = DeviceEvent::Create(*runtime_, 0).value();
  ASSERT_TRUE(behind.Record(stream_.get()).ok());
  EXPECT_FALSE(behind.Happened().value());
  word->store(2);
  Await();
  for (int i = 0; i < 130; ++i) EXPECT_EQ(outputs[static_cast<size_t>(i)][i % 7], std::byte{0xff});
}

}  // namespace
}  // namespace coordd
