#include "server/job/gpu_report.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace coordd {

std::string GpuReport(const v1::GpuHealth& health) {
  std::string report;
  if (health.last_xid() != 0) {
    report = absl::StrFormat("; the driver of its GPU %s has reported XID %d, %.0f s before",
                             health.uuid(), health.last_xid(), health.last_xid_seconds());
  }
  if (!health.trouble().empty())
    absl::StrAppend(&report, "; NVML says of its GPU ", health.uuid(), ": ", health.trouble());
  return report;
}

}  // namespace coordd
