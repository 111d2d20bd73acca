#include "client/coordrun/checks/host_names.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace coordd {
namespace {

constexpr size_t kMaxNamed = 8;  // hosts in one sentence

}  // namespace

std::vector<const HostReport*> Hosts(const std::vector<HostReport>& reports) {
  std::vector<const HostReport*> hosts;
  std::set<std::string> seen;
  for (const HostReport& report : reports) {
    if (seen.insert(absl::StrCat(report.channel, "/", report.report.host())).second) {
      hosts.push_back(&report);
    }
  }
  return hosts;
}

int32_t CoresOf(const HostReport& host, const std::vector<HostReport>& reports) {
  std::set<std::string> seen;
  int32_t cores = 0;
  for (const HostReport& other : reports) {
    if (other.channel != host.channel || other.report.host() != host.report.host()) continue;
    if (seen.insert(other.report.cpus()).second) cores += other.report.cores();
  }
  return cores;
}

std::string NameOf(const HostReport& report) {
  return report.channel == "srun" || report.channel.empty() ? report.report.host() : report.channel;
}

std::string Names(const std::vector<std::string>& hosts) {
  const size_t shown = std::min(hosts.size(), kMaxNamed);
  std::string text = absl::StrJoin(hosts.begin(), hosts.begin() + static_cast<long>(shown), ", ");
  if (hosts.size() > shown) absl::StrAppend(&text, " and ", hosts.size() - shown, " more");
  return absl::StrCat(hosts.size() == 1 ? "host " : "hosts ", text);
}

}  // namespace coordd
