// The rules of launcher_detect.h as data. PURE
#pragma once

#include <string>

#include "absl/types/span.h"
#include "common/base/environment.h"
#include "common/launch/launcher_detect.h"

namespace coordd {

enum class LauncherRole {
  kProcesses,  // starts each process of a job
  kStep,       // a scheduler that starts processes; they may be the daemons of one of the above
  kNodes,      // starts one process on each node
  kHosts,      // gives hosts, starts nothing
};

enum class HostListSyntax { kBrackets, kWords, kCounts, kPerSlotFile, kCountsFile, kJson };

struct HostListSource {
  const char* variable = nullptr;  // null: none
  HostListSyntax syntax = HostListSyntax::kWords;
};

// Lists of variables are separated by spaces. In a list of alternatives the first that is set
// counts.
struct LauncherRule {
  const char* name;
  const char* title;
  LauncherRole kind;
  const char* needs;          // all must be set
  const char* or_needs = "";  // or all of these
  const char* rank = "";      // alternatives, as are all that follow
  const char* size = "";
  const char* local_rank = "";
  const char* local_size = "";
  const char* node_rank = "";
  const char* nodes = "";
  const char* job_id = "";
  const char* job_part = "";  // of a scheduler: tells the elements of a job array apart
  const char* instance = "";  // all that are set, together
  // Where no variable names a start, and all its processes are on one node: the program that is an
  // ancestor of each.
  const char* daemon = "";
  HostListSource hosts[3] = {};  // the first that is set and can be read
  // Whether the first of the hosts may be the node of the batch script, which runs no task.
  bool drops_launch_node = false;
  const char* coordinator_hosts = "";  // each that is set is a hint: "host" or "host:port"
  // What the columns cannot say. Called when `needs` is met and the columns have been read. A text
  // means that the rule does not apply, and why.
  std::string (*finish)(const Environment&, const LaunchFacts&, LaunchPlace&) = nullptr;
};

// All rules, in the order of precedence.
absl::Span<const LauncherRule> LauncherRules();

}  // namespace coordd
