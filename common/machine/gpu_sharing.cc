#include "common/machine/gpu_sharing.h"

#include <sys/stat.h>

#include "absl/strings/str_cat.h"

namespace coordd {

std::string LookForMps(const Environment& environment, const std::string& usual) {
  const auto named = environment.find("CUDA_MPS_PIPE_DIRECTORY");
  const bool is_named = named != environment.end() && !named->second.empty();
  const std::string control = absl::StrCat(is_named ? named->second : usual, "/control");
  struct stat found = {};
  if (stat(control.c_str(), &found) != 0) return "";
  if (!S_ISSOCK(found.st_mode) && !S_ISFIFO(found.st_mode)) return "";
  const auto share = environment.find("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
  if (share == environment.end() || share->second.empty()) return "MPS";
  return absl::StrCat("MPS, up to ", share->second, " % of its threads");
}

std::string GpuSharing(absl::string_view model, absl::string_view mps) {
  const absl::string_view slice = MigSliceOf(model);
  return absl::StrCat(slice, slice.empty() || mps.empty() ? "" : ", ", mps);
}

}  // namespace coordd
