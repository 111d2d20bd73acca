#include "server/service/targets_file.h"

#include <utility>

#include "common/base/atomic_file.h"
#include "common/base/log.h"
#include "common/base/thread.h"
#include "server/metrics/prometheus_targets.h"
#include "server/service/coordinator.h"
#include "server/service/state_copies.h"

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
  {
    MutexLock lock(&mu_);
    ending_ = true;
  }
  ends_.NotifyAll();
  thread_.join();
}

void TargetsFile::Nudge() { changes_.TryPush(Change{}); }

bool TargetsFile::Rest(absl::Duration time) {
  MutexLock lock(&mu_);
  const auto ends = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return ending_; };
  clock_.Await(&mu_, &ends_, ends, clock_.Now() + time);
  return !ending_;
}

void TargetsFile::Run() {
  absl::Duration took;
  while (!changes_.Finished()) {
    // Workers come and go faster than all of a large state is told.
    if (took > StateCopies::kFree && !Rest((StateCopies::kShare - 1) * took)) return;
    took = absl::ZeroDuration();
    if (changes_.TakeAll(absl::InfiniteFuture()).empty()) continue;
    const auto state = coordinator_.Describe(clock_.Now() + kTargetsTimeout, &took);
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
