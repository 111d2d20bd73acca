// How this rank's GPU is, as metrics of the worker. (io)
#pragma once

#include <memory>

#include "coordd/v1/types.pb.h"

namespace prometheus {
class Registry;
}  // namespace prometheus

namespace coordd {

// Thread-safe. The registry outlives it. What NVML does not tell has no series.
class GpuMetrics {
 public:
  explicit GpuMetrics(prometheus::Registry& registry);
  ~GpuMetrics();

  void Set(const v1::GpuHealth& health);

 private:
  struct Families;
  const std::unique_ptr<Families> families_;
};

}  // namespace coordd
