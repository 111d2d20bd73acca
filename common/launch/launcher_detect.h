// Who this process is, from what its launcher or scheduler left in its environment. PURE
//
// The rules are a table (launcher_table.cc); docs/LAUNCHING.md tells them to users. A launcher's
// rank is a hint: the rank that counts is the one that coordd gives (torchrun, for one, changes
// RANK over restarts).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/environment.h"

namespace coordd {

// Facts besides the variables; each may be left out.
struct LaunchFacts {
  std::string hostname;  // of this machine
  // The contents of a (host) file that a variable names. Empty: files are not looked at.
  std::function<absl::StatusOr<std::string>(const std::string& path)> read_file;
  // What identifies, on this machine and for all time, the nearest ancestor process that runs the
  // program `name`; empty: there is none.
  std::function<std::string(const std::string& name)> ancestor;
};

// An address that the launcher gave away, which may serve to find a coordinator.
struct CoordinatorHint {
  std::string host;
  uint16_t port = 0;   // 0: not said
  std::string source;  // the variable
  friend bool operator==(const CoordinatorHint&, const CoordinatorHint&) = default;
};

struct LaunchPlace {
  std::string launcher = "none";  // the name that --launcher takes
  std::string title;              // for people: "Slurm"
  std::string why;                // one sentence

  // -1: the launcher does not say.
  int32_t rank = -1;
  int32_t size = -1;
  int32_t local_rank = -1;
  int32_t local_size = -1;
  int32_t node_rank = -1;
  int32_t nodes = -1;
  // Whether the launcher starts one process on each node (Kubernetes, AWS Batch): rank and size are
  // then those of nodes.
  bool node_level = false;
  // If it is not empty, this process is none of the launcher's, though it runs inside of an
  // allocation of several (a batch script's body, salloc without srun). The sentence says what to
  // do.
  std::string not_a_rank;

  // Whether COORDD_RANK and those with it are those of the process that has started this launcher,
  // and say nothing of this one.
  bool inside_coordrun = false;

  std::string job_id;    // of the scheduler, else of the launcher; empty: none
  std::string run_name;  // of this start, from a scheduler that starts the processes: "4711.0"
  // Equal in all processes of this start of the program, and different in every other start. Empty:
  // nothing of that kind is known.
  std::string instance;
  std::vector<std::string> hosts;   // each once, in the order of ranks where that is known
  std::vector<int32_t> host_slots;  // of each of `hosts`; 0: not said
  std::string unusable_hosts;       // why `hosts` is empty though a variable names some
  std::vector<CoordinatorHint> coordinator_hints;
  std::vector<std::string> topology;  // labels of this node, slowest network first; ddlrun's
  int32_t visible_gpus = -1;          // how many this process is shown; -1: not said

  std::vector<std::string> warnings;  // for the log: sentences
  std::vector<std::string> notes;     // what else was seen, and why it does not count

  bool is_rank() const { return rank >= 0; }
  bool one_node() const {
    return nodes == 1 || (size > 0 && local_size == size) || hosts.size() == 1;
  }
};

// The first rule of the table whose variables are all there and fit together. `requested`: empty or
// "auto": all rules; "none": no rule; else the name of one. Without any: launcher "none" and rank
// -1. INVALID_ARGUMENT: an unknown name, or a requested launcher whose variables are missing or
// contradict themselves. FAILED_PRECONDITION: a launcher runs in each of several workers of
// coordrun, so that each is a job of its own.
absl::StatusOr<LaunchPlace> DetectLaunchPlace(const Environment& environment,
                                              const LaunchFacts& facts,
                                              absl::string_view requested);

// The names that --launcher takes, in the order of precedence; "none" is the last.
std::vector<std::string> LauncherNames();

// The device of a process: the only one that it sees, else the one numbered like its local rank.
// -1: unknown.
int32_t DeviceOf(const LaunchPlace& place);

}  // namespace coordd
