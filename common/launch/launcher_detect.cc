#include "common/launch/launcher_detect.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/launch/host_list.h"
#include "common/launch/launcher_special.h"
#include "common/launch/launcher_table.h"

namespace coordd {
namespace {

// What came of one rule.
struct Reading {
  const LauncherRule* rule = nullptr;
  LaunchPlace place;
  std::string refusal;  // not empty: the rule does not apply, and why
};

std::vector<std::string> Names(const char* list) {
  return absl::StrSplit(list, ' ', absl::SkipEmpty());
}

bool AllSet(const Environment& environment, const char* list) {
  const std::vector<std::string> names = Names(list);
  return !names.empty() && std::all_of(names.begin(), names.end(), [&](const std::string& name) {
    return !Variable(environment, name).empty();
  });
}

// The first variable of `names` that is set, as a number. False: it is none; `refusal` says so.
bool ReadNumber(const Environment& environment, const char* names, int32_t minimum, int32_t* value,
                std::string* refusal) {
  for (const std::string& name : Names(names)) {
    const std::string text = Variable(environment, name);
    if (text.empty()) continue;
    const std::optional<int32_t> number = NumberOf(text, minimum);
    if (!number.has_value()) {
      *refusal =
          absl::StrCat(name, " is \"", text, "\", expected a whole number of at least ", minimum);
      return false;
    }
    *value = *number;
    return true;
  }
  return true;
}

// ["algo-1","algo-2"], SageMaker's; host names need no escapes.
std::vector<HostSlots> HostsOfJson(absl::string_view text) {
  std::vector<HostSlots> hosts;
  const std::vector<absl::string_view> parts = absl::StrSplit(text, '"');
  for (size_t i = 1; i + 1 < parts.size(); i += 2)
    hosts.push_back({std::string(parts[i]), 1, 0, ""});
  return hosts;
}

absl::StatusOr<std::vector<HostSlots>> HostsOf(const HostListSource& source,
                                               const std::string& value, const LaunchFacts& facts) {
  const bool is_file =
      source.syntax == HostListSyntax::kPerSlotFile || source.syntax == HostListSyntax::kCountsFile;
  std::string text = value;
  if (is_file) {
    if (!facts.read_file) return std::vector<HostSlots>();
    COORDD_ASSIGN_OR_RETURN(text, facts.read_file(value));
  }
  switch (source.syntax) {
    case HostListSyntax::kBrackets: {
      COORDD_ASSIGN_OR_RETURN(std::vector<std::string> names, ExpandHostList(text));
      std::vector<HostSlots> hosts;
      for (std::string& name : names) hosts.push_back({std::move(name), 0, 0, ""});
      return hosts;
    }
    case HostListSyntax::kWords:
      return ParseHostWords(text);
    case HostListSyntax::kCounts:
      return ParseHostCounts(text);
    case HostListSyntax::kPerSlotFile:
      return ParseHostPerSlotFile(text);
    case HostListSyntax::kCountsFile:
      return ParseHostFile(text);
    case HostListSyntax::kJson:
      return HostsOfJson(text);
  }
  return absl::InternalError("a syntax of host lists without a parser");
}

// LSF lists the node of the batch script with one slot beside nodes that have more. It runs no
// task, unless this process, which is one, runs there. It is found by this rule and not by its
// position, which differs between files and sites. Where the script runs on a host with several
// slots, there is no such node, and the one with one slot just got the rest.
void DropLaunchNode(const LauncherRule& rule, const std::string& hostname,
                    std::vector<HostSlots>* hosts) {
  const bool is_task = rule.kind != LauncherRole::kHosts;
  size_t single = hosts->size();
  for (size_t i = 0; i < hosts->size(); ++i) {
    const bool here = !hostname.empty() && SameHost(hostname, (*hosts)[i].host);
    if ((*hosts)[i].slots > 1 && here && !is_task) return;
    if ((*hosts)[i].slots > 1) continue;
    if (single != hosts->size()) return;  // several with one slot: a job of single slots
    if (here && is_task) return;
    single = i;
  }
  if (single == hosts->size() || hosts->size() < 2) return;
  hosts->erase(hosts->begin() + static_cast<std::ptrdiff_t>(single));
}

void ReadHosts(const Environment& environment, const LaunchFacts& facts, const LauncherRule& rule,
               LaunchPlace* place) {
  std::vector<std::string> unusable;
  for (const HostListSource& source : rule.hosts) {
    if (source.variable == nullptr) break;
    const std::string value = Variable(environment, source.variable);
    if (value.empty()) continue;
    absl::StatusOr<std::vector<HostSlots>> hosts = HostsOf(source, value, facts);
    if (!hosts.ok()) {
      place->warnings.push_back(absl::StrCat(source.variable, ": ", hosts.status().message()));
      unusable.push_back(place->warnings.back());
      continue;
    }
    if (hosts->empty()) {
      if (facts.read_file) unusable.push_back(absl::StrCat(source.variable, " names no host"));
      continue;
    }
    if (rule.drops_launch_node) DropLaunchNode(rule, facts.hostname, &*hosts);
    for (HostSlots& host : *hosts) {
      place->hosts.push_back(std::move(host.host));
      place->host_slots.push_back(host.slots);
    }
    return;
  }
  place->unusable_hosts = absl::StrJoin(unusable, "; ");
}

void ReadHints(const Environment& environment, const LauncherRule& rule, LaunchPlace* place) {
  for (const std::string& name : Names(rule.coordinator_hosts)) {
    const std::string value = Variable(environment, name);
    if (value.empty()) continue;
    CoordinatorHint hint{value, 0, name};
    const size_t colon = value.rfind(':');
    if (colon != std::string::npos && value.find(':') == colon) {
      if (const auto port = NumberOf(absl::string_view(value).substr(colon + 1), 1);
          port.has_value() && *port < 65536)
        hint = {value.substr(0, colon), static_cast<uint16_t>(*port), name};
    }
    place->coordinator_hints.push_back(std::move(hint));
  }
}

// Empty when the numbers fit together.
std::string Contradiction(const LaunchPlace& place) {
  const struct {
    const char* name;
    int32_t value;
    const char* bound_name;
    int32_t bound;
    bool may_be_equal;
  } pairs[] = {{"rank", place.rank, "size", place.size, false},
               {"local rank", place.local_rank, "local size", place.local_size, false},
               {"local rank", place.local_rank, "size", place.size, false},
               {"local size", place.local_size, "size", place.size, true},
               {"node rank", place.node_rank, "number of nodes", place.nodes, false}};
  for (const auto& pair : pairs) {
    if (pair.value < 0 || pair.bound < 0) continue;
    if (pair.value < pair.bound || (pair.may_be_equal && pair.value == pair.bound)) continue;
    return absl::StrCat("its ", pair.name, " ", pair.value, " does not fit its ", pair.bound_name,
                        " ", pair.bound);
  }
  return "";
}

std::string InstanceOf(const Environment& environment, const LaunchFacts& facts,
                       const LauncherRule& rule, const LaunchPlace& place) {
  if (rule.daemon[0] != '\0' && facts.ancestor && place.one_node()) {
    const std::string daemon = facts.ancestor(rule.daemon);
    return daemon.empty() ? "" : absl::StrCat(rule.name, " ", daemon);
  }
  std::vector<std::string> parts;
  for (const std::string& name : Names(rule.instance))
    if (std::string value = Variable(environment, name); !value.empty())
      parts.push_back(std::move(value));
  return parts.empty() ? "" : absl::StrCat(rule.name, " ", absl::StrJoin(parts, " "));
}

Reading Read(const Environment& environment, const LaunchFacts& facts, const LauncherRule& rule) {
  Reading reading{&rule, {}, ""};
  LaunchPlace& place = reading.place;
  place.launcher = rule.name;
  place.title = rule.title;
  const bool numbers =
      ReadNumber(environment, rule.rank, 0, &place.rank, &reading.refusal) &&
      ReadNumber(environment, rule.size, 1, &place.size, &reading.refusal) &&
      ReadNumber(environment, rule.local_rank, 0, &place.local_rank, &reading.refusal) &&
      ReadNumber(environment, rule.local_size, 1, &place.local_size, &reading.refusal) &&
      ReadNumber(environment, rule.node_rank, 0, &place.node_rank, &reading.refusal) &&
      ReadNumber(environment, rule.nodes, 1, &place.nodes, &reading.refusal);
  if (!numbers) return reading;
  place.job_id = FirstSet(environment, rule.job_id);
  if (rule.kind == LauncherRole::kStep) place.run_name = place.job_id;
  place.instance = InstanceOf(environment, facts, rule, place);
  ReadHosts(environment, facts, rule, &place);
  ReadHints(environment, rule, &place);
  if (rule.finish != nullptr) reading.refusal = rule.finish(environment, facts, place);
  if (reading.refusal.empty()) reading.refusal = Contradiction(place);
  if (rule.kind == LauncherRole::kNodes) {
    place.node_level = true;
    place.rank = place.node_rank;
    place.size = place.nodes;
  }
  return reading;
}

std::string Numbers(const LaunchPlace& place) {
  if (!place.is_rank()) return "no rank";
  return absl::StrCat("rank ", place.rank,
                      place.size > 0 ? absl::StrCat(" of ", place.size) : std::string());
}

std::string Variables(const Environment& environment, const LauncherRule& rule) {
  const char* met = AllSet(environment, rule.needs) ? rule.needs : rule.or_needs;
  return absl::StrJoin(Names(met), ", ", [&](std::string* out, const std::string& name) {
    absl::StrAppend(out, name, "=", Variable(environment, name));
  });
}

// What `other`, which comes later in the table, says beside the one that was chosen.
void Compare(const Reading& other, const Environment& environment, LaunchPlace* chosen) {
  const LaunchPlace& place = other.place;
  const std::string says = absl::StrCat(place.title, " says ", Numbers(place), " (",
                                        Variables(environment, *other.rule), ")");
  const bool same_size = place.size == chosen->size || place.size < 0;
  // coordrun numbers mpirun's ranks by node, as coordd does.
  const bool renumbered = chosen->launcher == "coordd" && place.size == chosen->size &&
                          !Variable(environment, "COORDD_TORCH_ENV").empty();
  if (!place.is_rank() || renumbered || (place.rank == chosen->rank && same_size)) {
    chosen->notes.push_back(says);
    return;
  }
  // mpirun and torchrun run inside of steps: each of the scheduler's processes is then a daemon
  // with processes of its own. But there is at least one of those for each daemon.
  const bool carries = other.rule->kind != LauncherRole::kProcesses;
  if (carries && (chosen->size < 0 || place.size <= chosen->size)) {
    // Two that tell of the nodes tell of the same pods.
    chosen->notes.push_back(absl::StrCat(
        says, chosen->node_level ? "" : ", which is the daemon that started this process"));
    return;
  }
  chosen->warnings.push_back(absl::StrCat("launchers disagree: ", chosen->title, " says ",
                                          Numbers(*chosen), ", ", says,
                                          "; the first counts (--launcher chooses another)"));
}

// What a scheduler knows and the launcher that runs inside of it does not.
void Complete(const Reading& scheduler, LaunchPlace* chosen) {
  const LaunchPlace& place = scheduler.place;
  if (scheduler.rule->kind == LauncherRole::kProcesses) return;
  if (chosen->hosts.empty()) {
    chosen->hosts = place.hosts;
    chosen->host_slots = place.host_slots;
  }
  // The scheduler's name for the job, which is the one that users know.
  if (!place.job_id.empty() && scheduler.rule->kind != LauncherRole::kNodes)
    chosen->job_id = place.job_id;
  // Two mpirun in one batch script are two instances, so the batch script's will not do.
  if (chosen->instance.empty() && place.is_rank()) chosen->instance = place.instance;
}

void CountGpus(const Environment& environment, LaunchPlace* place) {
  for (const char* name : {"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES",
                           "ZE_AFFINITY_MASK"}) {
    const auto found = environment.find(name);
    if (found == environment.end()) continue;
    const std::vector<std::string> devices = absl::StrSplit(found->second, ',', absl::SkipEmpty());
    int32_t count = 0;
    for (const std::string& device : devices) {
      if (device == "-1" || device == "NoDevFiles") break;  // what stands behind it is hidden too
      ++count;
    }
    place->visible_gpus = count;
    return;
  }
}

// Kubernetes and its like name pods, not jobs, and need a coordd that is named.
std::string SchedulerJobs(const Environment& environment) {
  std::vector<std::string> jobs;
  for (const LauncherRule& rule : LauncherRules()) {
    // JOB_ID alone is not Grid Engine's; the variables of those that have steps are their own.
    const bool counts = rule.kind == LauncherRole::kStep ||
                        (rule.kind == LauncherRole::kHosts &&
                         (AllSet(environment, rule.needs) || AllSet(environment, rule.or_needs)));
    if (!counts) continue;
    const std::string job = FirstSet(environment, rule.job_id);
    if (job.empty()) continue;
    const std::string part = FirstSet(environment, rule.job_part);
    jobs.push_back(absl::StrCat(rule.name, " ", job, part.empty() ? "" : ".", part));
  }
  return absl::StrJoin(jobs, ", ");
}

// Two jobs of one account may have all else in common: mpirun's or torchrun's address, or a PMIx
// namespace that counts the steps of a job.
void AddSchedulerJobs(const Environment& environment, LaunchPlace* place) {
  const std::string jobs = SchedulerJobs(environment);
  if (!place->instance.empty() && !jobs.empty()) absl::StrAppend(&place->instance, kInJob, jobs);
}

LaunchPlace Alone(absl::string_view why) {
  LaunchPlace place;
  place.title = "no launcher";
  place.why = std::string(why);
  return place;
}

// Those rules whose variables are there; `requested`: only the one of this name.
std::vector<Reading> ReadAll(const Environment& environment, const LaunchFacts& facts) {
  std::vector<Reading> readings;
  for (const LauncherRule& rule : LauncherRules()) {
    if (AllSet(environment, rule.needs) || AllSet(environment, rule.or_needs))
      readings.push_back(Read(environment, facts, rule));
  }
  return readings;
}

LaunchPlace Choose(std::vector<Reading> readings, const Environment& environment) {
  const auto accepted = [](const Reading& reading) { return reading.refusal.empty(); };
  auto chosen = std::find_if(readings.begin(), readings.end(), [&](const Reading& reading) {
    return accepted(reading) && reading.place.is_rank();
  });
  if (chosen == readings.end()) chosen = std::find_if(readings.begin(), readings.end(), accepted);
  LaunchPlace place = chosen != readings.end() ? std::move(chosen->place)
                                               : Alone("no launcher's variables are set");
  if (chosen != readings.end()) {
    const std::string variables = Variables(environment, *chosen->rule);
    place.why = place.why.empty() ? variables : absl::StrCat(place.why, " (", variables, ")");
  }
  for (auto reading = readings.begin(); reading != readings.end(); ++reading) {
    if (reading == chosen) continue;
    if (accepted(*reading)) {
      Compare(*reading, environment, &place);
      Complete(*reading, &place);
      continue;
    }
    const std::string text =
        absl::StrCat(reading->place.title, " does not count: ", reading->refusal);
    const bool surprising =
        reading->rule->kind == LauncherRole::kProcesses && !Contradiction(reading->place).empty();
    (surprising ? place.warnings : place.notes).push_back(text);
  }
  return place;
}

// torchrun as the command of coordrun's workers: its processes have the variables of both, and
// those of coordrun are each agent's. They are one job where one torchrun spans all the workers.
absl::Status JudgeTorchrunInCoordrun(const Environment& environment,
                                     std::vector<Reading>* readings) {
  const bool in_coordrun = !FirstSet(environment, "COORDD_LAUNCH_ID COORDD_TORCH_ENV").empty();
  const auto find = [readings](absl::string_view name) {
    return std::find_if(readings->begin(), readings->end(), [name](const Reading& reading) {
      return reading.rule->name == name && reading.refusal.empty() && reading.place.is_rank();
    });
  };
  const auto coordrun = find("coordd"), torchrun = find("torchrun");
  // coordrun takes the marks of a torchrun around it from its workers.
  if (!in_coordrun || coordrun == readings->end() || torchrun == readings->end() ||
      Variable(environment, "TORCHELASTIC_RUN_ID").empty())
    return absl::OkStatus();
  const int32_t workers = coordrun->place.size, agents = torchrun->place.nodes;
  if (workers != agents) {
    return absl::FailedPreconditionError(absl::StrCat(
        "torchrun runs in each of coordrun's ", workers, " workers and knows of ",
        std::max(agents, 1), ", so each is a job of its own, of ", torchrun->place.size,
        " processes (WORLD_SIZE): expected coordrun around the program without torchrun, or "
        "torchrun --nnodes ",
        workers));
  }
  coordrun->refusal = "torchrun runs inside of its workers, and its processes are the ranks";
  torchrun->place.inside_coordrun = true;
  return absl::OkStatus();
}

absl::StatusOr<LaunchPlace> ReadRequested(const Environment& environment, const LaunchFacts& facts,
                                          absl::string_view requested) {
  for (const LauncherRule& rule : LauncherRules()) {
    if (rule.name != requested) continue;
    if (!AllSet(environment, rule.needs) && !AllSet(environment, rule.or_needs)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "launcher ", requested, " was asked for, but its variables are not set: expected ",
          absl::StrJoin(Names(rule.needs), " and ")));
    }
    Reading reading = Read(environment, facts, rule);
    if (!reading.refusal.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("launcher ", requested, " was asked for, but ", reading.refusal));
    }
    reading.place.why = absl::StrCat("asked for; ", Variables(environment, rule));
    return std::move(reading.place);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "launcher \"", requested, "\" is unknown, expected ", absl::StrJoin(LauncherNames(), ", ")));
}

}  // namespace

absl::StatusOr<LaunchPlace> DetectLaunchPlace(const Environment& environment,
                                              const LaunchFacts& facts,
                                              absl::string_view requested) {
  LaunchPlace place;
  if (requested == "none") {
    place = Alone("--launcher none");
  } else if (requested.empty() || requested == "auto") {
    std::vector<Reading> readings = ReadAll(environment, facts);
    COORDD_RETURN_IF_ERROR(JudgeTorchrunInCoordrun(environment, &readings));
    place = Choose(std::move(readings), environment);
  } else {
    COORDD_ASSIGN_OR_RETURN(place, ReadRequested(environment, facts, requested));
  }
  AddSchedulerJobs(environment, &place);
  CountGpus(environment, &place);
  return place;
}

std::vector<std::string> LauncherNames() {
  std::vector<std::string> names;
  for (const LauncherRule& rule : LauncherRules()) names.emplace_back(rule.name);
  names.emplace_back("none");
  return names;
}

int32_t DeviceOf(const LaunchPlace& place) {
  if (place.visible_gpus == 1) return 0;
  if (place.visible_gpus == 0 || place.local_rank < 0) return -1;
  return place.visible_gpus < 0 || place.local_rank < place.visible_gpus ? place.local_rank : -1;
}

}  // namespace coordd
