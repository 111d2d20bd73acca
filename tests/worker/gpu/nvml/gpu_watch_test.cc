// NVML's answers, over its stand-in.
#include "worker/gpu/nvml/gpu_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <thread>

#include "tests/support/fake_clock.h"
#include "tests/support/gpu/fake_gpu.h"
#include "worker/gpu/nvml/nvml_gpu.h"
#include "worker/gpu/nvml/nvml_words.h"

namespace coordd {
namespace {

constexpr char kUuid[] = "GPU-8f3c0a12-0000-0000-0000-000000000001";

class GpuWatchTest : public testing::Test {
 protected:
  GpuWatchTest() {
    for (const auto& [name, value] : std::map<std::string, long>{{"mig", 0},
                                                                 {"lost", 0},
                                                                 {"init_error", 0},
                                                                 {"throttle", 1},
                                                                 {"ecc", 1},
                                                                 {"ecc_uncorrected", 0},
                                                                 {"temperature", 32},
                                                                 {"xid", 0}})
      SetFakeNvml(name.c_str(), value);
  }

  v1::GpuHealth Read() {
    auto gpu = NvmlGpu::Open(FakeNvmlPath(), kUuid);
    EXPECT_TRUE(gpu.ok()) << gpu.status();
    return (*gpu)->Read();
  }
  // The first answer for which it holds.
  static v1::GpuHealth Await(GpuWatch& watch,
                             const std::function<bool(const v1::GpuHealth&)>& holds) {
    const absl::Time until = Clock::Real().Now() + absl::Seconds(30);
    while (Clock::Real().Now() < until) {
      const auto latest = watch.Latest();
      if (latest.has_value() && holds(*latest)) return *latest;
      std::this_thread::yield();
    }
    ADD_FAILURE() << "no such answer";
    return {};
  }
};

TEST_F(GpuWatchTest, TellsHowTheGpuIs) {
  const v1::GpuHealth health = Read();
  EXPECT_EQ(health.uuid(), kUuid);
  EXPECT_EQ(health.utilization_percent(), 37);
  EXPECT_EQ(health.memory_used_bytes(), int64_t{1024} << 20);  // less what the driver keeps
  EXPECT_EQ(health.memory_total_bytes(), int64_t{81559} << 20);
  EXPECT_DOUBLE_EQ(health.power_watts(), 71.5);
  EXPECT_EQ(health.temperature_celsius(), 32);
  EXPECT_THAT(health.throttle_reasons(), testing::IsEmpty());  // it has nothing to do
  EXPECT_EQ(health.ecc_corrected(), 3);
  EXPECT_EQ(health.ecc_uncorrected(), 0);
  EXPECT_EQ(health.last_xid(), 0);
  EXPECT_EQ(health.trouble(), "");
  EXPECT_EQ(FakeNvmlBegun(), 0);  // as often ended as begun
}

TEST_F(GpuWatchTest, LeavesOutWhatTheDeviceDoesNotTell) {
  SetFakeNvml("ecc", 0);
  const v1::GpuHealth health = Read();
  EXPECT_FALSE(health.has_ecc_corrected());
  EXPECT_FALSE(health.has_ecc_uncorrected());
  EXPECT_TRUE(health.has_temperature_celsius());
}

TEST_F(GpuWatchTest, ASliceHasItsOwnNameAndMemoryAndTheGpusTemperature) {
  SetFakeNvml("mig", 1);
  const v1::GpuHealth health = Read();
  EXPECT_EQ(health.uuid(), "MIG-8f3c0a12-0000-0000-0000-000000000001");
  EXPECT_FALSE(health.has_utilization_percent());  // NVML does not tell it of a slice
  EXPECT_EQ(health.memory_used_bytes(), int64_t{1024} << 20);
  EXPECT_EQ(health.temperature_celsius(), 32);
  EXPECT_EQ(health.trouble(), "");
}

TEST_F(GpuWatchTest, ALostGpuIsNamedInNvmlsWords) {
  SetFakeNvml("lost", 1);
  const v1::GpuHealth health = Read();
  EXPECT_EQ(health.trouble(), "GPU is lost");
  EXPECT_FALSE(health.has_temperature_celsius());
}

TEST_F(GpuWatchTest, WithoutNvmlThereIsNoAnswerAndASentence) {
  const auto gpu = NvmlGpu::Open("/no/such/libnvidia-ml.so.1", kUuid);
  EXPECT_EQ(gpu.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(gpu.status().message()),
              testing::HasSubstr("/no/such/libnvidia-ml.so.1"));
  SetFakeNvml("init_error", kNvmlNoPermission);
  EXPECT_EQ(NvmlGpu::Open(FakeNvmlPath(), kUuid).status().message(),
            "nvmlInit: Insufficient Permissions");
}

TEST_F(GpuWatchTest, KeepsTheLastXidAndSaysHowLongAgo) {
  FakeClock clock;
  GpuWatch watch(clock, FakeNvmlPath());
  EXPECT_FALSE(watch.Latest().has_value());
  watch.Watch(kUuid);
  EXPECT_EQ(Await(watch, [](const auto&) { return true; }).last_xid(), 0);
  SetFakeNvml("xid", 79);
  clock.Advance(absl::Seconds(2));
  watch.Ask();
  Await(watch, [](const auto& health) { return health.last_xid() == 79; });
  clock.Advance(absl::Seconds(5));
  watch.Ask();
  const v1::GpuHealth later =
      Await(watch, [](const auto& health) { return health.last_xid_seconds() > 0; });
  EXPECT_EQ(later.last_xid(), 79);
  EXPECT_DOUBLE_EQ(later.last_xid_seconds(), 5);
}

TEST_F(GpuWatchTest, AsksTheDeviceOnceASecondAtMost) {
  FakeClock clock;
  GpuWatch watch(clock, FakeNvmlPath());
  watch.Ask();  // of no device yet: nothing
  const long before = FakeNvmlReads();
  watch.Watch(kUuid);
  Await(watch, [](const auto&) { return true; });
  for (int i = 0; i < 100; ++i) watch.Ask();
  SetFakeNvml("temperature", 90);
  clock.Advance(GpuWatch::kReadEvery);
  watch.Ask();
  Await(watch, [](const auto& health) { return health.temperature_celsius() == 90; });
  EXPECT_EQ(FakeNvmlReads() - before, 2);
}

TEST_F(GpuWatchTest, AnotherDeviceIsAskedFromTheNextQuestionOn) {
  FakeClock clock;
  GpuWatch watch(clock, FakeNvmlPath());
  watch.Watch(kUuid);
  Await(watch, [](const auto&) { return true; });
  watch.Watch("GPU-other");
  EXPECT_EQ(Await(watch, [](const auto& health) { return health.uuid() != kUuid; }).uuid(),
            "GPU-other");
}

TEST(NvmlWords, NameWhatSlowsAGpuDownAndWhatItsDriverReports) {
  EXPECT_THAT(SlowdownReasons(0), testing::IsEmpty());
  EXPECT_THAT(SlowdownReasons(kNvmlSlowIdle | kNvmlSlowPowerCap | kNvmlSlowHardwareThermal),
              testing::ElementsAre("power cap", "temperature (hardware)"));
  EXPECT_THAT(SlowdownReasons(0x200), testing::ElementsAre("reason 0x200"));
  EXPECT_EQ(XidText(79), "XID 79 (the GPU has fallen off the bus)");
  EXPECT_EQ(XidText(999), "XID 999");
}

}  // namespace
}  // namespace coordd
