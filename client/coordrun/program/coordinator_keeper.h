// The coordd of a run: heard, asked, and started again when it dies while workers need it. (io)
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/coordrun/coordinator/run_coordinator.h"
#include "client/coordrun/plan/output.h"
#include "client/coordrun/plan/quick_deaths.h"
#include "client/coordrun/plan/run_options.h"
#include "client/coordrun/plan/run_plan.h"
#include "client/coordrun/process/line_splitter.h"
#include "client/coordrun/process/process_end.h"
#include "common/base/clock.h"
#include "common/base/environment.h"
#include "coordd/v1/admin.pb.h"

namespace coordd {

// One owner, one thread. What its coordd says is shown before it is told how that one has ended. Of
// a coordd that was named it knows the address alone.
class CoordinatorKeeper {
 public:
  // All outlive it. `pids`: of the run's workers, whose ends are told elsewhere.
  CoordinatorKeeper(const RunOptions& options, const Environment& environment, Clock& clock,
                    Output& output, const std::vector<pid_t>& pids)
      : options_(options), environment_(environment), clock_(clock), output_(output), pids_(pids) {}
  CoordinatorKeeper(const CoordinatorKeeper&) = delete;
  CoordinatorKeeper& operator=(const CoordinatorKeeper&) = delete;

  // As SetUpCoordinator.
  absl::Status SetUp(const RunPlan& plan, const std::string& directory);
  const RunCoordinator& coordinator() const { return coordinator_; }
  const Rendezvous& rendezvous() const { return coordinator_.rendezvous; }
  bool is_own() const { return coordinator_.process.has_value(); }
  bool has_ended() const { return is_own() && coordinator_.process->process.reaped(); }

  // That a named coordd speaks another way (TLS, certificates, no coordd at all) stays so; one that
  // is not there yet may come.
  absl::Status CheckSpeaks() const;
  // Of pods, whose coordd may be started later than they, and have no name before: whether it
  // answers. UNAVAILABLE, DEADLINE_EXCEEDED: not yet.
  absl::Status CheckIsThere() const;
  // What it knows of the job. Nothing: it does not answer.
  std::optional<v1::ServerState> FetchView(const std::vector<std::string>& launches,
                                           absl::Duration timeout) const;

  // kEntries entries.
  void Await(std::vector<pollfd>& fds);
  static constexpr size_t kEntries = 3;
  // Those of Await. `needed`: workers need it. Returns how it has ended, if they do and it cannot
  // be started again.
  std::optional<ProcessEnd> Handle(absl::Span<const pollfd> fds, bool needed);
  void Read();  // shows what it has said

  // From now on nobody needs it.
  void Release() { released_ = true; }
  void Signal(int signal);  // REQUIRES: is_own

 private:
  bool TellsOfOurs(absl::string_view line) const;
  // Whether it runs again; if not, it is not worth another try.
  bool Restart(const ProcessEnd& end);

  // Constant after construction.
  const RunOptions& options_;
  const Environment& environment_;
  Clock& clock_;
  Output& output_;
  const std::vector<pid_t>& pids_;

  RunCoordinator coordinator_;
  LineSplitter out_, err_;
  QuickDeaths deaths_;
  bool released_ = false;
};

}  // namespace coordd
