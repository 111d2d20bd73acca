#include "common/launch/auto_coordinator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/stable_hash.h"
#include "common/base/status_macros.h"
#include "common/launch/launcher_special.h"

namespace coordd {
namespace {

constexpr char kOtherwise[] =
    "start coordd and set COORDD_ADDR, use coordrun, or set COORDD_RENDEZVOUS_FILE to a path in a "
    "directory that all nodes share";
constexpr char kRunsBelow[] = "/.coordd/run/";
constexpr char kRendezvousName[] = "coordd.json";

struct Instance {
  absl::string_view alone;  // what the launcher says
  absl::string_view jobs;   // of schedulers
};

Instance PartsOf(absl::string_view instance) {
  const size_t at = instance.find(kInJob);
  if (at == absl::string_view::npos) return {instance, ""};
  return {instance.substr(0, at), instance.substr(at + sizeof(kInJob) - 1)};
}

PortRange PortsOf(const AutoSettings& settings, absl::string_view instance) {
  if (settings.ports.has_value()) return *settings.ports;
  const uint16_t first = PortOfInstance(instance);
  constexpr uint16_t kEnd = kAutoPortBase + kAutoPortCount - 1;
  return {first, static_cast<uint16_t>(std::min<int>(first + kAutoPortTries - 1, kEnd))};
}

absl::StatusOr<std::string> RendezvousFileOf(const LaunchPlace& place, const AutoSettings& settings,
                                             bool one_node) {
  if (!settings.rendezvous_file.empty()) return settings.rendezvous_file;
  if (place.instance.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "no coordinator is named, and ", place.title,
        " gives its processes nothing in common by which they could find one: ", kOtherwise));
  }
  const std::string name = DirectoryOfInstance(place);
  if (one_node && !settings.local_directory.empty())
    return absl::StrCat(settings.local_directory, "/run/", name, "/", kRendezvousName);
  if (settings.shared_directory.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "no coordinator is named, and there is no home directory in which the nodes of this job "
        "could find one: ",
        kOtherwise));
  }
  return absl::StrCat(settings.shared_directory, kRunsBelow, name, "/", kRendezvousName);
}

absl::StatusOr<AutoPlan> PlanAlone(const LaunchPlace& place, const AutoSettings& settings) {
  if (settings.workers > 1) {
    return absl::FailedPreconditionError(absl::StrCat(
        "a job of ", settings.workers,
        " workers (COORDD_SIZE) needs a coordinator, and none is named: ", kOtherwise));
  }
  AutoPlan plan;
  plan.ports = settings.ports.value_or(PortRange());
  plan.why = place.is_rank() ? absl::StrCat("a job of one worker (", place.title, ")")
                             : "no launcher and no coordinator: a job of one worker";
  return plan;
}

}  // namespace

uint16_t PortOfInstance(absl::string_view instance) {
  return static_cast<uint16_t>(kAutoPortBase + StableHash(instance) % kAutoPortCount);
}

std::string DirectoryOfInstance(const LaunchPlace& place) {
  constexpr size_t kMaxNameBytes = 64;
  std::string name;
  const std::string& run = place.run_name.empty() ? place.launcher : place.run_name;
  for (char c : run.substr(0, kMaxNameBytes))
    name += absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-' ? c : '_';
  if (name.empty() || name[0] == '.') name.insert(0, "run");
  const auto hash = [](absl::string_view text) {
    return absl::StrCat("-", absl::Hex(StableHash(text) & 0xffffffffu, absl::kZeroPad8));
  };
  const Instance instance = PartsOf(place.instance);
  return absl::StrCat(name, hash(instance.alone),
                      instance.jobs.empty() ? std::string() : hash(instance.jobs));
}

std::vector<std::string> OtherRendezvousFiles(const LaunchPlace& place, const std::string& path,
                                              absl::Span<const std::string> directories) {
  std::vector<std::string> others;
  const Instance instance = PartsOf(place.instance);
  LaunchPlace unseen = place;
  unseen.instance = std::string(instance.alone);
  const std::string own = DirectoryOfInstance(place), alone = DirectoryOfInstance(unseen);
  const std::string end = absl::StrCat("/", own, "/", kRendezvousName);
  if (!absl::EndsWith(path, end)) return others;  // the user's own choice
  const std::string runs = path.substr(0, path.size() - end.size());
  for (const std::string& directory : directories) {
    const bool other_sees = instance.jobs.empty() && directory.size() > alone.size() &&
                            absl::StartsWith(directory, alone + "-");
    const bool only_we_see = !instance.jobs.empty() && directory == alone;
    if (other_sees || only_we_see)
      others.push_back(absl::StrCat(runs, "/", directory, "/", kRendezvousName));
  }
  return others;
}

bool IsOfThisStart(const LaunchPlace& place, absl::string_view instance) {
  const Instance ours = PartsOf(place.instance), theirs = PartsOf(instance);
  return ours.alone == theirs.alone &&
         (ours.jobs == theirs.jobs || ours.jobs.empty() || theirs.jobs.empty());
}

absl::StatusOr<AutoPlan> PlanAutoCoordinator(const LaunchPlace& place,
                                             const AutoSettings& settings) {
  if (!place.not_a_rank.empty()) return absl::FailedPreconditionError(place.not_a_rank);
  const int32_t size = settings.workers > 0 ? settings.workers : place.size;
  // A rank 0 that makes a job of its own leaves word for the others all the same: their jobs, of
  // the same start, need a coordd too.
  const bool others_may_look = place.rank == 0 && place.size > 1;
  if (!place.is_rank() || (size == 1 && !others_may_look)) return PlanAlone(place, settings);
  if (place.node_level && settings.rendezvous_file.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        place.title,
        " starts one process on each node: expected coordrun -np WORKERS -- PROGRAM there, which "
        "starts those of the node, or COORDD_ADDR, of a coordd that runs, or "
        "COORDD_RENDEZVOUS_FILE, in a directory that all nodes share"));
  }
  if (size < 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(place.title, " says that this is rank ", place.rank,
                     " but not of how many: set COORDD_SIZE, and COORDD_ADDR to a coordd"));
  }
  AutoPlan plan;
  plan.one_node = place.one_node();
  absl::StatusOr<std::string> file = RendezvousFileOf(place, settings, plan.one_node);
  if (!file.ok()) return size == 1 ? PlanAlone(place, settings) : file.status();
  plan.rendezvous_file = *std::move(file);
  plan.role = place.rank == 0 ? AutoPlan::Role::kStarts : AutoPlan::Role::kFinds;
  plan.ports = PortsOf(settings, place.instance);
  plan.why = absl::StrCat("no coordinator is named: ",
                          place.rank == 0 ? "this process starts one" : "rank 0 starts one",
                          " and writes its address to ", plan.rendezvous_file);
  return plan;
}

}  // namespace coordd
