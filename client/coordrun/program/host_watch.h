// The hosts of a run: those of its plan, or those that a --host-discovery-script names. (io)
#pragma once

#include <poll.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/coordrun/plan/host_answers.h"
#include "client/coordrun/plan/run_options.h"
#include "client/coordrun/plan/run_plan.h"
#include "client/coordrun/plan/slot_book.h"
#include "client/coordrun/program/host_discovery.h"
#include "common/base/environment.h"

namespace coordd {

// One owner, one thread. Only hosts that change have slots in its book; those that do not are asked
// for nothing.
class HostWatch {
 public:
  explicit HostWatch(const RunOptions& options)
      : options_(options), slots_(options.max_np), answers_(options.min_np) {}

  // Of hosts that change; the planned ones are those that there are now, in the order of their
  // ranks, which the book keeps.
  void Begin(const RunPlan& plan, const Environment& environment);
  bool change() const { return discovery_ != nullptr; }
  SlotBook& slots() { return slots_; }
  const SlotBook& slots() const { return slots_; }
  HostRanks PlaceOf(int32_t worker) const;  // REQUIRES: change()

  // Nothing, unless they change.
  void Await(std::vector<pollfd>& fds);
  std::optional<absl::StatusOr<std::vector<HostSlots>>> Handle(absl::Span<const pollfd> fds,
                                                               absl::Time now);
  absl::Time NextDeadline() const {
    return change() ? discovery_->NextDeadline() : absl::InfiniteFuture();
  }
  // What is made of an answer.
  HostAnswers::Verdict Judge(const absl::StatusOr<std::vector<HostSlots>>& hosts, absl::Time now) {
    return answers_.Judge(hosts, now, hosts.ok() ? slots_.DrainedOf(*hosts) : 0);
  }

 private:
  const RunOptions& options_;
  std::unique_ptr<HostDiscovery> discovery_;  // null: the hosts are those of the plan
  SlotBook slots_;
  HostAnswers answers_;
};

}  // namespace coordd
