#include "client/coordctl/gpu_view.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/coordctl/state_view.h"

namespace coordd {
namespace {

// What asks for somebody's attention.
std::string RemarksOf(const v1::GpuHealth& gpu) {
  std::vector<std::string> remarks;
  if (!gpu.throttle_reasons().empty())
    remarks.push_back(absl::StrCat("slowed down: ", absl::StrJoin(gpu.throttle_reasons(), ", ")));
  if (gpu.ecc_corrected() > 0 || gpu.ecc_uncorrected() > 0) {
    remarks.push_back(absl::StrCat("memory errors: ", gpu.ecc_corrected(), " corrected, ",
                                   gpu.ecc_uncorrected(), " uncorrected"));
  }
  if (gpu.last_xid() != 0) {
    remarks.push_back(
        absl::StrCat("XID ", gpu.last_xid(), ", ", DurationText(gpu.last_xid_seconds()), " ago"));
  }
  if (!gpu.trouble().empty()) remarks.push_back(gpu.trouble());
  return absl::StrJoin(remarks, "; ");
}

std::string Line(int32_t rank, const v1::GpuHealth& gpu) {
  const std::string load =
      gpu.has_utilization_percent() ? absl::StrCat(gpu.utilization_percent(), " %") : "-";
  const std::string memory =
      gpu.has_memory_used_bytes()
          ? absl::StrCat(BytesText(static_cast<double>(gpu.memory_used_bytes())), " of ",
                         BytesText(static_cast<double>(gpu.memory_total_bytes())))
          : "-";
  const std::string power =
      gpu.has_power_watts() ? absl::StrFormat("%.0f W", gpu.power_watts()) : "-";
  const std::string temperature =
      gpu.has_temperature_celsius() ? absl::StrCat(gpu.temperature_celsius(), " C") : "-";
  std::string line = absl::StrFormat("    %5d  %-12s %6s %22s %6s %5s  %s", rank,
                                     gpu.uuid().substr(0, sizeof("GPU-8f3c0a12") - 1), load, memory,
                                     power, temperature, RemarksOf(gpu));
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

}  // namespace

std::string GpuHealthText(const v1::JobState& job) {
  std::vector<const v1::WorkerState*> workers;
  for (const v1::WorkerState& worker : job.workers())
    if (worker.has_gpu_health() && worker.rank() >= 0) workers.push_back(&worker);
  if (workers.empty()) return "";
  std::sort(workers.begin(), workers.end(),
            [](const auto* a, const auto* b) { return a->rank() < b->rank(); });
  std::string out = absl::StrFormat("    %5s  %-12s %6s %22s %6s %5s\n", "rank", "gpu", "load",
                                    "memory", "power", "temp");
  for (const v1::WorkerState* worker : workers)
    absl::StrAppend(&out, Line(worker->rank(), worker->gpu_health()));
  return out;
}

}  // namespace coordd
