#include "server/targets_file.h"

#include <utility>

#include "common/atomic_file.h"
#include "common/log.h"
#include "common/thread.h"
#include "server/coordinator.h"
#include "server/prometheus_targets.h"

namespace coordd {
namespace {
constexpr absl::Duration kTargetsTimeout = absl::Seconds(5);
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
    if (absl::Status status = WriteFileAtomically(path_, targets, 0644); !status.ok()) {
      COORDD_LOG(kWarning, "targets file: ", status.message());
      continue;
    }
    written_ = std::move(targets);
  }
}

}  // namespace coordd
