#include "worker/runtime/worker_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/registry.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"

namespace coordd {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr char kTensors[] =
    "coordd_worker_collectives_total{backend=\"host\",code=\"OK\",kind=\"allreduce\"} ";
constexpr char kBytes[] = "coordd_worker_payload_bytes_total{backend=\"host\",kind=\"allreduce\"} ";

TEST(WorkerMetrics, WhatCallersCountByThemselvesIsInTheText) {
  prometheus::Registry registry;
  WorkerMetrics metrics(registry);
  auto one = metrics.OpenTally(CollectiveKind::kAllreduce, "host");
  auto other = metrics.OpenTally(CollectiveKind::kAllreduce, "host");
  one->Record(4);
  other->Record(8);
  metrics.RecordCollective(CollectiveKind::kAllreduce, "host", absl::StatusCode::kOk, 16);
  EXPECT_THAT(MetricsText(registry, metrics), HasSubstr(std::string(kTensors) + "3\n"));
  EXPECT_THAT(MetricsText(registry, metrics), HasSubstr(std::string(kBytes) + "28\n"));
  // Nothing of one that is gone is lost, or counted twice.
  one->Record(4);
  one.reset();
  other->Record(4);
  EXPECT_THAT(MetricsText(registry, metrics), HasSubstr(std::string(kTensors) + "5\n"));
  EXPECT_THAT(MetricsText(registry, metrics), HasSubstr(std::string(kBytes) + "36\n"));
}

TEST(WorkerMetrics, WhatNvmlDoesNotTellHasNoSeries) {
  prometheus::Registry registry;
  WorkerMetrics metrics(registry);
  EXPECT_THAT(MetricsText(registry, metrics), Not(HasSubstr("_gpu_")));
  v1::GpuHealth health;
  health.set_temperature_celsius(64);
  health.set_ecc_uncorrected(2);
  health.set_last_xid(79);
  health.add_throttle_reasons("power cap");
  metrics.SetGpu(health);
  std::string text = MetricsText(registry, metrics);
  EXPECT_THAT(text, HasSubstr("coordd_worker_gpu_temperature_celsius 64\n"));
  EXPECT_THAT(text, HasSubstr("coordd_worker_gpu_ecc_errors{kind=\"uncorrected\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("coordd_worker_gpu_last_xid 79\n"));
  EXPECT_THAT(text, HasSubstr("coordd_worker_gpu_throttled{reason=\"power cap\"} 1\n"));
  EXPECT_THAT(text, Not(HasSubstr("utilization")));
  health.clear_throttle_reasons();
  metrics.SetGpu(health);
  text = MetricsText(registry, metrics);
  EXPECT_THAT(text, HasSubstr("coordd_worker_gpu_throttled{reason=\"power cap\"} 0\n"));
}

TEST(WorkerMetrics, ATallyMayOutliveThem) {
  std::shared_ptr<WorkerMetrics::Tally> tally;
  {
    prometheus::Registry registry;
    WorkerMetrics metrics(registry);
    tally = metrics.OpenTally(CollectiveKind::kAllreduce, "host");
  }
  tally->Record(4);
}

TEST(WorkerMetrics, CountsConnectionsThatWereNotBelieved) {
  prometheus::Registry registry;
  WorkerMetrics metrics(registry);
  constexpr absl::string_view kRefused = "\ncoordd_worker_refused_connections_total ";
  for (const int64_t so_far : {0, 3, 3, 10}) {
    EXPECT_THAT(MetricsText(registry, metrics, so_far),
                HasSubstr(absl::StrCat(kRefused, so_far, "\n")));
  }
}

}  // namespace
}  // namespace coordd
