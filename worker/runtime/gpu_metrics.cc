#include "worker/runtime/gpu_metrics.h"

#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>

#include <map>
#include <string>

#include "common/base/mutex.h"

namespace coordd {
namespace {

using Gauges = prometheus::Family<prometheus::Gauge>;

Gauges& MakeFamily(prometheus::Registry& registry, const char* name, const char* help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry);
}

}  // namespace

struct GpuMetrics::Families {
  explicit Families(prometheus::Registry& r)
      : utilization(MakeFamily(r, "coordd_worker_gpu_utilization_percent",
                               "Of the last moments, how long a kernel was running")),
        memory_used(MakeFamily(r, "coordd_worker_gpu_memory_used_bytes",
                               "Memory of the GPU that all its programs have")),
        memory_total(MakeFamily(r, "coordd_worker_gpu_memory_total_bytes", "Memory of the GPU")),
        power(MakeFamily(r, "coordd_worker_gpu_power_watts", "What the GPU draws")),
        temperature(
            MakeFamily(r, "coordd_worker_gpu_temperature_celsius", "Temperature of the GPU")),
        throttled(MakeFamily(r, "coordd_worker_gpu_throttled",
                             "1: this keeps the clocks of the GPU down, 0: no longer")),
        ecc(MakeFamily(r, "coordd_worker_gpu_ecc_errors",
                       "Errors of the GPU's memory since its driver was loaded")),
        xid(MakeFamily(r, "coordd_worker_gpu_last_xid",
                       "The last error that the GPU's driver has reported; 0: none")) {}

  // Thread-safe by itself.
  Gauges& utilization;
  Gauges& memory_used;
  Gauges& memory_total;
  Gauges& power;
  Gauges& temperature;
  Gauges& throttled;
  Gauges& ecc;
  Gauges& xid;

  Mutex mu;
  std::map<std::string, prometheus::Gauge*> reasons ABSL_GUARDED_BY(mu);  // that have been there
};

GpuMetrics::GpuMetrics(prometheus::Registry& registry)
    : families_(std::make_unique<Families>(registry)) {}
GpuMetrics::~GpuMetrics() = default;

void GpuMetrics::Set(const v1::GpuHealth& health) {
  Families& f = *families_;
  if (health.has_utilization_percent()) f.utilization.Add({}).Set(health.utilization_percent());
  if (health.has_memory_used_bytes())
    f.memory_used.Add({}).Set(static_cast<double>(health.memory_used_bytes()));
  if (health.has_memory_total_bytes())
    f.memory_total.Add({}).Set(static_cast<double>(health.memory_total_bytes()));
  if (health.has_power_watts()) f.power.Add({}).Set(health.power_watts());
  if (health.has_temperature_celsius()) f.temperature.Add({}).Set(health.temperature_celsius());
  if (health.has_ecc_corrected())
    f.ecc.Add({{"kind", "corrected"}}).Set(static_cast<double>(health.ecc_corrected()));
  if (health.has_ecc_uncorrected())
    f.ecc.Add({{"kind", "uncorrected"}}).Set(static_cast<double>(health.ecc_uncorrected()));
  f.xid.Add({}).Set(health.last_xid());
  MutexLock lock(&f.mu);
  for (const auto& [reason, gauge] : f.reasons) gauge->Set(0);
  for (const std::string& reason : health.throttle_reasons()) {
    prometheus::Gauge& gauge = f.throttled.Add({{"reason", reason}});
    gauge.Set(1);
    f.reasons[reason] = &gauge;
  }
}

}  // namespace coordd
