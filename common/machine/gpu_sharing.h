// Whether a process has a GPU for itself: CUDA's Multi-Process Service and MIG slices. (io)
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"
#include "common/base/environment.h"

namespace coordd {

// "MPS, up to 45 % of its threads", where CUDA of this process goes through the service: its
// control daemon's socket is in CUDA_MPS_PIPE_DIRECTORY, or in `usual`. Empty: it does not. A
// daemon that was killed leaves its socket behind, which nobody can tell from one that runs but by
// connecting.
std::string LookForMps(const Environment& environment,
                       const std::string& usual = "/tmp/nvidia-mps");

// "MIG 1g.10gb", of a device whose model is "NVIDIA H100 80GB HBM3 MIG 1g.10gb"; empty: a whole
// one.
inline absl::string_view MigSliceOf(absl::string_view model) {
  const size_t at = model.rfind(" MIG ");
  return at == absl::string_view::npos ? "" : absl::StripAsciiWhitespace(model.substr(at + 1));
}

// "MIG 1g.10gb, MPS"; empty: neither.
std::string GpuSharing(absl::string_view model, absl::string_view mps);

}  // namespace coordd
