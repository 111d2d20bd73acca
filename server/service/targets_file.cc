#include "server/service/targets_file.h"

#include <utility>

#include "common/base/atomic_file.h"
#include "common/base/log.h"
#include "common/base/thread.h"
#include "server/metrics/prometheus_targets.h"
#include "server/service/coordinator.h"

namespace coordd {
namespace {
constexpr absl::Duration kTargetsTimeout = absl::Seconds(5);
}

absl::Status WriteTargets(const std::string& path, const std::string& targets) {
  const absl::Status status = WriteFileAtomically(path, targets, 0644);
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("--prometheus-file-sd: ", status.message()));
}

TargetsFile::TargetsFile(std::string path, Coordinator& coordinator, Clock& clock)
    : path_(std::move(path)), coordinator_(coordinator), clock_(clock), changes_(1, clock) {
  Nudge();
  thread_ = StartThread("targets-file", [this] { Run(); });
}

TargetsFile::~TargetsFile() {
  changes_.Close();
  thread_.join();
}

void TargetsFile::Nudge() { changes_.TryPush(Change{}); }

void TargetsFile::Run() {
  while (!changes_.Finished()) {
    if (changes_.TakeAll(absl::InfiniteFuture()).empty()) continue;
    const auto state = coordinator_.Describe("", clock_.Now() + kTargetsTimeout);
    if (!state.ok()) {
      COORDD_LOG(kWarning, "targets file ", path_, " was not written: ", state.status().message());
      continue;
    }
    std::string targets = PrometheusTargets(*state);
    if (targets == written_) continue;
    if (absl::Status status = WriteTargets(path_, targets); !status.ok()) {
      COORDD_LOG(kWarning, status.message());
      continue;
    }
    written_ = std::move(targets);
  }
}

}  // namespace coordd
