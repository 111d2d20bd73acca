// What a seed stands for: which of the faults asked for happen how often, to how many workers. The
// tests and coordd-sim run the same, so that the one runs again what the other has found.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tests/sim/recovery_sim.h"
#include "tests/sim/schedule_sim.h"

namespace coordd {

enum class Fault {
  kKill,     // of workers
  kRestart,  // coordd dies, and is started again on what it had stored
  kSleep,    // coordd sleeps for a lease, while streams end
  kBreak,    // streams of those who are coming back
  kChange,   // of members, that rank 0 asks for
  kDrain,    // of workers, that an operator asks for or their own process
  kEvict,
  kPartition,  // of a worker and coordd
  kCut,        // links between workers
  kNewcomers,  // workers that come while the job runs
  kPause,      // of workers
  kStale,      // messages, on streams that were given up
  kRelay,      // of a node: the streams of its workers
};
using FaultSet = std::set<Fault>;

FaultSet AllFaults();
absl::string_view Name(Fault fault);
std::string About(Fault fault);  // for --help
std::string ToString(const FaultSet& faults);
// "kill,restart", "all" or "none". INVALID_ARGUMENT: names what there is.
absl::StatusOr<FaultSet> ParseFaults(absl::string_view list);

// At least one of the faults happens, if the simulator has one of them.
RecoverySimOptions RecoveryOptionsOf(uint64_t seed, const FaultSet& faults);
SimFaults ScheduleFaultsOf(uint64_t seed, const FaultSet& faults);

// The line that runs it again.
std::string Replay(absl::string_view simulator, uint64_t seed, const FaultSet& faults,
                   absl::string_view bug = "");

}  // namespace coordd
