// What this process takes of its machine, under the names that every exporter of Prometheus's uses,
// so that dashboards for them find it. (io)
#pragma once

#include "common/base/mutex.h"

namespace prometheus {
class Counter;
class Gauge;
class Registry;
}  // namespace prometheus

namespace coordd {

// Thread-safe. The registry outlives it.
class ProcessMetrics {
 public:
  explicit ProcessMetrics(prometheus::Registry& registry);

  // Reads /proc: called before each scrape. What cannot be read stays as it was.
  void Update();

 private:
  // Thread-safe by itself.
  prometheus::Counter& cpu_seconds_;
  prometheus::Gauge& resident_bytes_;
  prometheus::Gauge& virtual_bytes_;
  prometheus::Gauge& open_fds_;
  prometheus::Gauge& max_fds_;

  // Guarded by mu_.
  Mutex mu_;
  double told_cpu_seconds_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace coordd
