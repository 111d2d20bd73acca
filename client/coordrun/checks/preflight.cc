#include "client/coordrun/checks/preflight.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/coordrun/checks/host_names.h"

namespace coordd {
namespace {

// Logs of hosts that differ by more than this cannot be read side by side.
constexpr double kClockSkewSeconds = 2;
// Certificates begin ten minutes before they are made: to a clock behind that they are not valid
// yet.
constexpr double kClockBehindSeconds = 590;

std::string Shown(const std::string& value) { return value.empty() ? "none" : value; }

// What must be equal everywhere.
struct Property {
  const char* check;
  const char* what;
  bool error;
  std::string (*value)(const AgentReport&);
  const char* advice;
};

std::string Models(const AgentReport& report) {
  std::map<std::string, int> counts;
  for (const std::string& model : report.gpus()) ++counts[model];
  return absl::StrJoin(counts, " + ", [](std::string* out, const auto& entry) {
    absl::StrAppend(out, entry.second, " x ", entry.first);
  });
}

constexpr Property kProperties[] = {
    {"versions", "coordd", true, [](const AgentReport& r) { return r.version(); },
     "install the same version on all hosts"},
    {"versions", "NCCL", false, [](const AgentReport& r) { return r.nccl(); },
     "ranks with different NCCL versions may refuse each other: use one library everywhere "
     "(COORDD_NCCL_LIBRARY)"},
    {"versions", "UCX", false, [](const AgentReport& r) { return r.ucx(); },
     "ranks with different UCX versions may not understand each other's addresses"},
    {"gpus", "GPUs", false, Models, "the slowest sets the pace: keep a job on hosts of one kind"},
};

void CompareProperty(const Property& property, const std::vector<const HostReport*>& hosts,
                     std::vector<Finding>* findings) {
  std::map<std::string, std::vector<std::string>> by_value;
  for (const HostReport* host : hosts) {
    by_value[property.value(host->report)].push_back(NameOf(*host));
  }
  if (by_value.size() < 2) return;
  const auto usual = std::max_element(
      by_value.begin(), by_value.end(),
      [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  for (const auto& [value, odd] : by_value) {
    if (value == usual->first) continue;
    findings->push_back({property.error, property.check, odd[0],
                         absl::StrCat(Names(odd), odd.size() == 1 ? " has " : " have ",
                                      property.what, " ", Shown(value), ", ", Names(usual->second),
                                      usual->second.size() == 1 ? " has " : " have ",
                                      Shown(usual->first), ": ", property.advice)});
  }
}

// The middle of asking and answering is when it looked at its clock, give or take half of the time
// between.
void JudgeClock(const HostReport& host, std::vector<Finding>* findings) {
  const double asked = absl::ToDoubleSeconds(host.asked - absl::UnixEpoch());
  const double answered = absl::ToDoubleSeconds(host.answered - absl::UnixEpoch());
  const double theirs = host.report.unix_seconds();
  // Before the question, or after the answer: by that much at least it is wrong.
  const double skew = theirs < asked ? theirs - asked : theirs > answered ? theirs - answered : 0;
  if (std::abs(skew) < kClockSkewSeconds) return;
  const bool error = skew < -kClockBehindSeconds;
  findings->push_back(
      {error, "clock", NameOf(host),
       absl::StrFormat("host %s: its clock is %.0f s %s this one's%s: run chrony or ntpd there",
                       NameOf(host), std::abs(skew), skew < 0 ? "behind" : "ahead of",
                       error ? ", beyond what this run's certificates allow" : "")});
}

void JudgeCores(const HostReport& host, int32_t cores, bool slurm, std::vector<Finding>* findings) {
  const int32_t ranks = host.report.local_size();
  if (cores == 0 || cores >= ranks) return;
  findings->push_back(
      {false, "cores", NameOf(host),
       absl::StrCat("host ", NameOf(host), ": ", ranks, " ranks share ", cores,
                    cores == 1 ? " core" : " cores",
                    ", and wait for each other: expected a core for each",
                    slurm ? " (sbatch --ntasks-per-node and --cpus-per-task)" : " (fewer slots)")});
}

// `torch.cuda.set_device(hvd.local_rank())` needs as many visible devices as ranks on the host.
void JudgeGpus(const HostReport& host, bool slurm, std::vector<Finding>* findings) {
  const AgentReport& report = host.report;
  if (report.visible_gpus() == 0 || report.visible_gpus() >= report.local_size()) return;
  std::string text =
      absl::StrCat("host ", NameOf(host), ": ", report.local_size(),
                   report.local_size() == 1 ? " rank, which sees " : " ranks, each of which sees ",
                   report.visible_gpus(), report.visible_gpus() == 1 ? " GPU" : " GPUs");
  if (slurm && report.visible_gpus() == 1) {
    absl::StrAppend(&text,
                    ": set_device(local_rank()) fails on all but the first; expected "
                    "--launcher-arg=--gpu-bind=none with --gpus-per-node, or set_device(0) in the "
                    "program");
  } else {
    absl::StrAppend(&text, ": several ranks would share one; expected a GPU for each rank",
                    slurm ? " (--gpus-per-node)" : " (fewer slots, or CUDA_VISIBLE_DEVICES)");
  }
  findings->push_back({false, "gpus", NameOf(host), std::move(text)});
}

void JudgeFolder(const std::vector<const HostReport*>& hosts, std::vector<Finding>* findings) {
  std::vector<std::string> apart;
  for (const HostReport* host : hosts) {
    if (host->report.marker_missing()) apart.push_back(NameOf(*host));
  }
  if (apart.empty()) return;
  findings->push_back(
      {false, "folder", apart[0],
       absl::StrCat(Names(apart), apart.size() == 1 ? " has" : " have",
                    " a working directory of the same name that is not the one here: what one rank "
                    "writes others do not see; expected a shared file system for checkpoints")});
}

}  // namespace

std::vector<Finding> JudgeHosts(const std::vector<HostReport>& reports, LauncherKind launcher,
                                const std::string& own_version) {
  std::vector<Finding> findings;
  const std::vector<const HostReport*> hosts = Hosts(reports);
  const bool slurm = launcher == LauncherKind::kSrun;
  for (const Property& property : kProperties) CompareProperty(property, hosts, &findings);
  for (const HostReport* host : hosts) {
    JudgeClock(*host, &findings);
    JudgeCores(*host, CoresOf(*host, reports), slurm, &findings);
    JudgeGpus(*host, slurm, &findings);
  }
  JudgeFolder(hosts, &findings);
  const bool mixed = std::any_of(findings.begin(), findings.end(), [](const Finding& finding) {
    return finding.error && finding.check == "versions";
  });
  if (!mixed && !hosts.empty() && hosts[0]->report.version() != own_version) {
    findings.push_back(
        {true, "versions", "",
         absl::StrCat("the hosts have coordd ", hosts[0]->report.version(), ", this machine has ",
                      own_version, ": install the same version everywhere")});
  }
  return findings;
}

std::string FindingsText(const std::vector<Finding>& findings) {
  return absl::StrJoin(findings, "\n", [](std::string* out, const Finding& finding) {
    absl::StrAppend(out, "coordrun: ", finding.error ? "" : "warning: ", finding.text);
  });
}

std::string HostsText(const std::vector<HostReport>& reports) {
  const std::vector<const HostReport*> hosts = Hosts(reports);
  int32_t ranks = 0;
  std::vector<std::string> texts;
  for (const HostReport* host : hosts) {
    const AgentReport& report = host->report;
    ranks += report.local_size();
    texts.push_back(absl::StrCat(NameOf(*host), " (ranks: ", report.local_size(), ", cores: ",
                                 CoresOf(*host, reports), ", GPUs: ", report.visible_gpus(), ")"));
  }
  return absl::StrCat(hosts.size(), hosts.size() == 1 ? " host, " : " hosts, ", ranks,
                      ranks == 1 ? " rank: " : " ranks: ", absl::StrJoin(texts, ", "));
}

std::string FindingsJson(const std::vector<HostReport>& reports,
                         const std::vector<Finding>& findings) {
  using Json = nlohmann::ordered_json;
  Json hosts = Json::array(), found = Json::array();
  for (const HostReport* host : Hosts(reports)) {
    const AgentReport& report = host->report;
    hosts.push_back({{"host", NameOf(*host)},
                     {"ranks", report.local_size()},
                     {"coordd", report.version()},
                     {"nccl", report.nccl()},
                     {"ucx", report.ucx()},
                     {"cores", CoresOf(*host, reports)},
                     {"gpus", report.gpus()},
                     {"visible_gpus", report.visible_gpus()},
                     {"coordinator", report.coordinator()},
                     {"same_folder", !report.marker_missing()},
                     {"answered_seconds", absl::ToDoubleSeconds(host->answered - host->asked)}});
  }
  for (const Finding& finding : findings) {
    found.push_back({{"check", finding.check},
                     {"error", finding.error},
                     {"host", finding.host},
                     {"text", finding.text}});
  }
  const Json json = {{"hosts", std::move(hosts)}, {"findings", std::move(found)}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace coordd
