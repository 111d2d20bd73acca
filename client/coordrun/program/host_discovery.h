// Runs a --host-discovery-script every second. (io)
#pragma once

#include <poll.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/coordrun/plan/run_options.h"
#include "client/coordrun/process/child_process.h"
#include "common/base/clock.h"
#include "common/base/environment.h"
#include "common/launch/host_list.h"

namespace coordd {

// One owner, one thread. Never blocks.
class HostDiscovery {
 public:
  // A command of the shell, as horovodrun takes it.
  HostDiscovery(std::string script, int32_t slots_per_host, Environment environment)
      : script_(std::move(script)),
        slots_per_host_(slots_per_host),
        environment_(std::move(environment)) {}

  // Three entries.
  void Await(std::vector<pollfd>& fds);
  static constexpr size_t kEntries = 3;
  // What it has said, once for each time that it has ended. UNAVAILABLE, INVALID_ARGUMENT: it has
  // failed; NOT_FOUND: the shell cannot run it; what was known before stays true.
  std::optional<absl::StatusOr<std::vector<HostSlots>>> Handle(absl::Span<const pollfd> fds,
                                                               absl::Time now);
  // When Handle has something to do that no descriptor tells.
  absl::Time NextDeadline() const { return process_ ? give_up_ : next_start_; }

 private:
  static void Read(OwnedFd& from, std::string& into);
  absl::StatusOr<std::vector<HostSlots>> Result(const ProcessEnd& end) const;

  // Constant after construction.
  const std::string script_;
  const int32_t slots_per_host_;
  const Environment environment_;

  std::optional<ChildProcess> process_;
  std::string out_, err_;
  bool too_slow_ = false;
  absl::Time next_start_ = absl::InfinitePast();
  absl::Time give_up_ = absl::InfiniteFuture();
};

// Until there are slots for min_np workers (np, without it), for --elastic-timeout at most: the
// hosts. Blocks. `tell` gets a sentence about each answer that is refused, once. DEADLINE_EXCEEDED:
// says how many there are, or why the script fails. NOT_FOUND: the shell cannot run the script,
// which is not tried again.
absl::StatusOr<std::vector<HostSlots>> DiscoverFirstHosts(
    const RunOptions& options, const Environment& environment, Clock& clock,
    const std::function<void(const std::string& sentence)>& tell);

}  // namespace coordd
