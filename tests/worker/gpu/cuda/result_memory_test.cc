// Memory for the library's results, over the stand-in of the driver, whose cuMemFree waits for the
// device as a real one's does.
#include "worker/gpu/cuda/result_memory.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "tests/support/gpu/fake_gpu.h"
#include "tests/support/status_matchers.h"
#include "worker/gpu/cuda/device_kernels.h"
#include "worker/gpu/cuda/pinned_pool.h"
#include "worker/interfaces/idle_wait.h"

namespace coordd {
namespace {

constexpr int32_t kDevice = 1;
constexpr int64_t kBytes = 10'000;

// A device with a stream that stands still until Go.
class ResultMemoryTest : public testing::Test {
 protected:
  ~ResultMemoryTest() override {
    Go();
    SetFakeCuda("capturing", 0);
  }

  std::shared_ptr<ResultMemory> Make(ResultMemory::Frees frees = ResultMemory::Frees::kWhenTold) {
    return std::make_shared<ResultMemory>(device_, frees, /*idle_bytes_max=*/kBytes);
  }
  void Halt() {
    *word_ = 1;
    EXPECT_TRUE(kernels_.Gate(word_, stream_.get()).ok());
  }
  void Go() { *word_ = 0; }
  void AwaitStream() {
    DeviceEvent end = DeviceEvent::Create(*device_, kDevice).value();
    EXPECT_TRUE(end.Record(stream_.get()).ok());
    IdleWait idle(1, 1);
    while (!end.Happened().value()) idle.Wait();
  }
  // A result that the stream has read; where it was.
  const std::byte* UseAndRelease(ResultMemory& memory, int64_t bytes = kBytes) {
    auto result = memory.Take(kDevice, bytes).value();
    ResultMemory::NoteReader(result, stream_.get());
    ResultMemory::NoteReleased(result);
    return result.get();
  }

  const std::shared_ptr<DeviceRuntime> device_ = DeviceRuntime::Open(FakeCudaPath()).value();
  DeviceStream stream_ = DeviceStream::Create(*device_, kDevice).value();
  DeviceKernels kernels_ = DeviceKernels::Load(*device_, kDevice).value();
  const DeviceMemory pinned_ =
      DeviceMemory::AllocatePinned(*device_, kDevice, sizeof(uint32_t)).value();
  std::atomic<uint32_t>* const word_ = new (pinned_.data()) std::atomic<uint32_t>(0);
};

TEST_F(ResultMemoryTest, IsUsedAgainWhenItsReadersAreThrough) {
  const auto memory = Make();
  Halt();
  const std::byte* const first = UseAndRelease(*memory);
  // The stream has yet to read it.
  const auto other = memory->Take(kDevice, kBytes).value();
  EXPECT_NE(other.get(), first);
  Go();
  AwaitStream();
  EXPECT_EQ(memory->Take(kDevice, kBytes).value().get(), first);
}

TEST_F(ResultMemoryTest, ServesSizesUpToTwiceAndTheSameDevice) {
  const auto memory = Make();
  const std::byte* const large = UseAndRelease(*memory, 4 * kBytes);
  AwaitStream();
  EXPECT_NE(memory->Take(kDevice, kBytes).value().get(), large);
  EXPECT_NE(memory->Take(kDevice + 1, 4 * kBytes).value().get(), large);
  EXPECT_EQ(memory->Take(kDevice, 3 * kBytes).value().get(), large);
}

TEST_F(ResultMemoryTest, WhoseReadersAreNotKnownIsNotUsedAgain) {
  const auto memory = Make();
  for (int i = 0; i < 3; ++i) {
    auto result = memory->Take(kDevice, kBytes).value();
    if (i == 1) ResultMemory::NoteReader(result, stream_.get());  // never released
    if (i == 2) {
      SetFakeCuda("capturing", 1);
      ResultMemory::NoteReader(result, stream_.get());
      ResultMemory::NoteReleased(result);
      SetFakeCuda("capturing", 0);
    }
    const std::byte* const place = result.get();
    result.reset();
    AwaitStream();
    EXPECT_NE(memory->Take(kDevice, kBytes).value().get(), place);
    memory->Free();
  }
}

TEST_F(ResultMemoryTest, IsFullOfWhatIsOfNoUseAndNotOfWhatProgramsUseAtOneTime) {
  const auto memory = Make();
  UseAndRelease(*memory, 8 * kBytes);
  EXPECT_FALSE(memory->full());  // eight times the bound, all of which was in use at one time
  for (int64_t i = 0; i < 2 * ResultMemory::kBatches; ++i) memory->CountBatch();
  EXPECT_TRUE(memory->full());
  EXPECT_GE(memory->bytes(), 8 * kBytes);
  memory->Free();
  EXPECT_FALSE(memory->full());
  EXPECT_EQ(memory->bytes(), 0);
  for (int i = 0; i < 2; ++i) memory->Take(kDevice, kBytes).IgnoreError();  // nobody's
  EXPECT_TRUE(memory->full());
}

TEST_F(ResultMemoryTest, NothingIsFreedWhileTheDeviceIsBusyUnlessSomebodySaysSo) {
  const auto memory = Make();
  Halt();  // to free would be to wait for ever
  for (int i = 0; i < 20; ++i) UseAndRelease(*memory, kBytes * (i % 5 + 1));
  memory->Take(kDevice, kBytes).IgnoreError();
  EXPECT_TRUE(memory->full());
  Go();
  memory->Close();
  EXPECT_EQ(memory->bytes(), 0);
}

TEST_F(ResultMemoryTest, OfTheStagerIsFreedByWhoLetsGoOfIt) {
  const auto memory = Make(ResultMemory::Frees::kAtOnce);
  memory->Take(kDevice, kBytes).IgnoreError();
  EXPECT_EQ(memory->bytes(), 0);
  const std::byte* const kept = UseAndRelease(*memory);
  AwaitStream();
  EXPECT_EQ(memory->Take(kDevice, kBytes).value().get(), kept);
}

TEST_F(ResultMemoryTest, AResultOutlivesThatWhichMadeIt) {
  auto memory = Make();
  auto result = memory->Take(kDevice, kBytes).value();
  memory->Close();
  memory.reset();
  result.get()[kBytes - 1] = std::byte{1};  // the fake's device memory is memory
  ResultMemory::NoteReader(result, stream_.get());
  ResultMemory::NoteReleased(result);
}

TEST_F(ResultMemoryTest, PinnedMemoryThatIsReturnedIsNotFreed) {
  PinnedPool pool(*device_, /*many_bytes=*/10'000);
  Halt();  // to free would be to wait for ever
  DeviceMemory large = pool.Take(kDevice, 16'000).value();
  DeviceMemory small = pool.Take(kDevice, 100).value();
  const std::byte* const places[] = {large.data(), small.data()};
  EXPECT_EQ(pool.bytes(), 16'384 + 4'096);
  pool.Return(std::move(large));
  pool.Return(std::move(small));
  // Of its size first; then what is larger, since there is much of it.
  const DeviceMemory again[] = {pool.Take(kDevice, 200).value(), pool.Take(kDevice, 200).value(),
                                pool.Take(kDevice, 200).value()};
  EXPECT_EQ(again[0].data(), places[1]);
  EXPECT_EQ(again[1].data(), places[0]);
  EXPECT_EQ(pool.bytes(), 16'384 + 4'096 + 4'096);
  Go();
}

}  // namespace
}  // namespace coordd
