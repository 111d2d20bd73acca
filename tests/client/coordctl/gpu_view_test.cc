#include "client/coordctl/gpu_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace coordd {
namespace {

TEST(GpuHealthText, HasALineForEachRankThatHasTold) {
  v1::JobState job;
  EXPECT_EQ(GpuHealthText(job), "");
  job.add_workers()->set_rank(0);
  EXPECT_EQ(GpuHealthText(job), "");
  v1::WorkerState& slice = *job.add_workers();
  slice.set_rank(2);
  slice.mutable_gpu_health()->set_uuid("MIG-77770a12-1111");
  v1::WorkerState& whole = *job.add_workers();
  whole.set_rank(1);
  v1::GpuHealth& gpu = *whole.mutable_gpu_health();
  gpu.set_uuid("GPU-8f3c0a12-1111");
  gpu.set_utilization_percent(97);
  gpu.set_memory_used_bytes(int64_t{40} << 30);
  gpu.set_memory_total_bytes(int64_t{80} << 30);
  gpu.set_power_watts(512.4);
  gpu.set_temperature_celsius(64);
  EXPECT_EQ(GpuHealthText(job),
            "     rank  gpu            load                 memory  power  temp\n"
            "        1  GPU-8f3c0a12   97 %   40.0 GiB of 80.0 GiB  512 W  64 C\n"
            "        2  MIG-77770a12      -                      -      -     -\n");
}

TEST(GpuHealthText, SaysWhatAsksForAttention) {
  v1::JobState job;
  v1::GpuHealth& gpu = *job.add_workers()->mutable_gpu_health();
  gpu.add_throttle_reasons("power cap");
  gpu.add_throttle_reasons("temperature");
  gpu.set_ecc_corrected(3);
  gpu.set_ecc_uncorrected(1);
  gpu.set_last_xid(79);
  gpu.set_last_xid_seconds(12);
  gpu.set_trouble("GPU is lost");
  EXPECT_THAT(
      GpuHealthText(job),
      testing::HasSubstr("  slowed down: power cap, temperature; memory errors: 3 corrected, "
                         "1 uncorrected; XID 79, 12 s ago; GPU is lost\n"));
}

}  // namespace
}  // namespace coordd
