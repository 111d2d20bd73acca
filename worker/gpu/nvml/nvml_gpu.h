// One GPU, or a slice of one, as NVML sees it. (io)
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordd/v1/types.pb.h"
#include "worker/gpu/nvml/nvml_api.h"

namespace coordd {

// One thread uses an object.
class NvmlGpu {
 public:
  // `uuid`: as CUDA's driver tells it, "GPU-…", also of a MIG slice, whose name here is "MIG-…".
  // NOT_FOUND: no NVML. UNAVAILABLE: it does not know the device, or NVML's own words.
  static absl::StatusOr<std::unique_ptr<NvmlGpu>> Open(const std::string& library,
                                                       const std::string& uuid);
  ~NvmlGpu();
  NvmlGpu(const NvmlGpu&) = delete;
  NvmlGpu& operator=(const NvmlGpu&) = delete;

  const std::string& uuid() const { return uuid_; }  // as nvidia-smi shows it

  // Reads all but XIDs. What this device does not tell is left out.
  v1::GpuHealth Read() const;
  // The XIDs since the last call, or since Open, as far as NVML has kept them: the last ones.
  std::vector<uint64_t> TakeXids() const;

 private:
  explicit NvmlGpu(const NvmlFunctions& nvml) : nvml_(nvml) {}
  absl::Status Find(const std::string& uuid);
  void ListenForXids();
  void ReadMemory(v1::GpuHealth* health) const;
  void ReadErrors(v1::GpuHealth* health) const;

  // Constant after Open.
  const NvmlFunctions nvml_;
  std::string uuid_;
  NvmlDevice device_ = nullptr;  // of a slice: itself
  NvmlDevice whole_ = nullptr;   // of a slice: the GPU
  NvmlEventSet events_ = nullptr;
};

}  // namespace coordd
