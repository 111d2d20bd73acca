// What is wrong with the hosts of a run, before its workers start. PURE
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/coordrun/plan/launcher_kind.h"
#include "client/coordrun/wire/agent_messages.h"

namespace coordd {

// What an agent found on its host, and when it was asked and answered by our clock.
struct HostReport {
  AgentReport report;
  std::string channel;  // the host's name in -H; "srun" for all tasks
  absl::Time asked, answered;
};

struct Finding {
  bool error = false;  // the run cannot work; else it may work badly
  std::string check;   // "versions", "clock", ...: for programs
  std::string host;    // the odd one; empty: all of them
  std::string text;    // one sentence, with the host and what to do
  friend bool operator==(const Finding&, const Finding&) = default;
};

// Most of the hosts are taken to be right: what differs from the most frequent value is named.
std::vector<Finding> JudgeHosts(const std::vector<HostReport>& reports, LauncherKind launcher,
                                const std::string& own_version);

// One line for each, for people.
std::string FindingsText(const std::vector<Finding>& findings);
// "2 hosts, 8 ranks: node1 (4 ranks, 32 cores, 4 GPUs), ...".
std::string HostsText(const std::vector<HostReport>& reports);
// {"hosts": [...], "findings": [...]} in one line, for programs.
std::string FindingsJson(const std::vector<HostReport>& reports,
                         const std::vector<Finding>& findings);

}  // namespace coordd
