// What coordrun says about a run. Values in, text out.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/coordrun/plan/run_options.h"
#include "client/coordrun/plan/run_plan.h"
#include "client/coordrun/plan/run_state.h"
#include "coordd/v1/admin.pb.h"

namespace coordd {

struct RunReport {
  std::string job;
  std::vector<pid_t> pids;         // of each worker; 0: not known
  std::vector<std::string> hosts;  // of each worker; empty: this machine
  // Last lines that each worker wrote to stderr.
  std::vector<std::deque<std::string>> tails;
  std::vector<std::string> coordinator_view;  // see coordinator_view.h
  int64_t batches = 0, bytes = 0;             // reduced on each rank, as coordd knows them
  bool nobody_joined = false;                 // so coordd says, and it was asked
  absl::Duration wall;
  std::string early_goodbye = "";  // see EarlyGoodbye
};

// "rank 2 (pid 4711) failed first: it was killed by SIGKILL after 1.2 s"; why the run is being
// ended, for the moment when that begins.
std::string EndingText(const RunOptions& options, const RunState& state, const RunReport& report);

// "rank 2 (pid 4711) was killed by SIGKILL after 1.2 s (last on stderr: out of memory); 3 workers
// go on". REQUIRES: it has ended.
std::string LossText(const RunOptions& options, const RunState& state, const RunReport& report,
                     int32_t worker, const std::deque<std::string>& tail);

// "rank 2 (pid 4711) was asked to leave and exited with status 0 after 1.2 s; 3 workers go on".
// REQUIRES: it has ended.
std::string DrainText(const RunOptions& options, const RunState& state, const RunReport& report,
                      int32_t worker);

// With how many workers an elastic run begins, and that others may join: "starts 4 workers; the
// job begins with all that come in time, 2 at least (--min-np), ...". Empty: it begins with all
// that it ever has.
std::string BeginningText(const RunOptions& options, const RunPlan& plan);

// "1 worker is left, --min-np 2: waiting up to 600 s for another": what the run waits for; empty:
// it goes on, or ends.
std::string WaitingText(const RunOptions& options, const RunState& state);

// Whether coordd knows that this worker, by its launch id, was asked to leave.
bool WasAskedToLeave(const v1::ServerState& state, const std::string& job,
                     const std::string& launch);

// Why, in coordd's view, no generation of the job follows, so that the run is over; empty: one may.
// Until a worker of this run, by its launch id, has come, a coordd that was there before still
// shows the run before.
std::string NoneFollows(const v1::ServerState& state, const std::string& job,
                        const std::vector<std::string>& launches);

// No worker of the run is in the job, or has been.
bool NobodyHasCome(const v1::ServerState& state, const RunReport& report);

// Workers that have ended well but not for the others: the first one that coordd has not seen join
// while the job waits for it. Nothing: none. `completes`: see RunState::Blame.
struct EarlyExit {
  int32_t worker = 0;
  std::string completes;
};
std::optional<EarlyExit> FindEarlyExit(const v1::ServerState& state, const RunState& run,
                                       const RunReport& report);

// Whether some workers have ended well and all that are alive wait for a generation of their own:
// they were started again too late.
bool OnlyLatecomersAreLeft(const v1::ServerState& state, const RunState& run,
                           const RunReport& report);

// To the report's view: of workers that coordd has lost although they ended well, what that means.
void ExplainLostExits(const v1::ServerState& state, const RunOptions& options, const RunState& run,
                      RunReport* report);

// Why coordd has let none of this worker's process in, as it has said it; empty: it has not been
// refused, as far as these lines tell.
std::string RefusalOf(const std::deque<std::string>& tail);

// What to do about a worker's last words on stderr; empty: nothing is known.
std::string HintFrom(const RunOptions& options, const std::deque<std::string>& tail);

// Whether these are of a program that ended since another rank was lost: an error of the library's
// that names it.
bool EndedByALoss(const std::deque<std::string>& tail);

// Several lines for people, without line end; begins with how it went.
std::string SummaryText(const RunOptions& options, const RunState& state, const RunReport& report);
// One line for programs.
std::string SummaryJson(const RunOptions& options, const RunState& state, const RunReport& report);

}  // namespace coordd
