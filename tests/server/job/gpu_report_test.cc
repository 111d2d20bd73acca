#include "server/job/gpu_report.h"

#include <gtest/gtest.h>

namespace coordd {
namespace {

TEST(GpuReport, SaysOnlyWhatHasToDoWithALoss) {
  v1::GpuHealth health;
  health.set_uuid("GPU-8f3c");
  health.add_throttle_reasons("power cap");
  EXPECT_EQ(GpuReport(health), "");
  health.set_last_xid(79);
  health.set_last_xid_seconds(12.2);
  EXPECT_EQ(GpuReport(health), "; the driver of its GPU GPU-8f3c has reported XID 79, 12 s before");
  health.clear_last_xid();
  health.set_trouble("GPU is lost");
  EXPECT_EQ(GpuReport(health), "; NVML says of its GPU GPU-8f3c: GPU is lost");
}

}  // namespace
}  // namespace coordd
