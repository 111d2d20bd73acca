// The one implementation of Comm.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "worker/api/comm.h"
#include "worker/base/fork_guard.h"
#include "worker/interfaces/collective_backend.h"
#include "worker/interfaces/doorbell.h"
#include "worker/runtime/generation_plane.h"
#include "worker/runtime/worker_metrics.h"

namespace coordd {

// A Comm. Over mapped memory the caller advances a NodeCollectiveRun by itself, and looks at the
// generation's end between two looks at the others; that they are dead it hears from coordd.
// Otherwise the executor runs the collective, on the caller's thread if that is free.
class BareComm final : public Comm {
 public:
  struct Needs {
    std::string name;             // for texts
    std::vector<int32_t> ranks;   // of the members, in the generation
    int32_t self = 0;             // among them
    LaneId lane;                  // its own
    absl::Duration timeout;       // of each call
    int32_t polling_threads = 1;  // as ExecutorOptions
    int32_t cores = 1;
    std::shared_ptr<GenerationPlane> plane;
    std::shared_ptr<MappedLane> mapped;  // nullptr: messages
    // Not used once the plane's generation has ended.
    WorkerMetrics* metrics = nullptr;
    std::function<void(const absl::Status&)> report_failure;  // of the data plane
    Clock* clock = nullptr;
  };

  explicit BareComm(Needs parts);
  ~BareComm() override;
  BareComm(const BareComm&) = delete;
  BareComm& operator=(const BareComm&) = delete;

  int32_t rank() const override { return needs_.self; }
  int32_t size() const override { return static_cast<int32_t>(needs_.ranks.size()); }
  absl::Status Run(const CommCall& call) override;

 private:
  absl::Status Check(const CommCall& call) const;
  absl::Status CheckState() const;
  // What the call says, in args_. INVALID_ARGUMENT.
  absl::Status Prepare(const CommCall& call);
  absl::Status RunMapped();
  template <typename Collective>
  absl::Status Await(Collective& run, Doorbell& bell);
  absl::Status RunByMessages();
  void Divide(const CommCall& call) const;
  void Count(const CommCall& call, const absl::Status& status);
  absl::Status Named(const absl::Status& status) const;

  // Constant after construction.
  const Needs needs_;
  const std::string backend_name_;
  const ForkGuard fork_guard_;

  // Thread-safe by itself.
  std::atomic<bool> in_call_ = false;

  // Touched by whoever is in a call.
  CollectiveArgs args_;               // kept, with what its lists have room for
  std::optional<CommCall> prepared_;  // what args_ are of: programs say the same again and again
  bool scaled_ = false;               // the average of the last call was made in passing
  absl::Status failure_;
  std::array<std::shared_ptr<WorkerMetrics::Tally>, 32> tallies_;  // by kind; nullptr: none yet
};

}  // namespace coordd
