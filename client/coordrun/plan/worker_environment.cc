#include "client/coordrun/plan/worker_environment.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace coordd {
namespace {

// True on one machine, or for one login, and wrong elsewhere.
constexpr const char* kOfThisMachine[] = {
    "HOME", "USER",   "LOGNAME", "SHELL", "MAIL", "PWD", "OLDPWD",     "SHLVL",    "_",   "TERM",
    "HOST", "TMPDIR", "DISPLAY", "TTY",   "TMUX", "STY", "XAUTHORITY", "HOSTNAME", "TMP", "TEMP"};
constexpr const char* kPrefixesOfThisMachine[] = {
    "SSH_", "XDG_", "DBUS_", "SLURM", "PMI_", "PMIX_", "OMPI_", "MPIEXEC_", "LS_COLOR", "WINDOW"};

bool OfOuterTorchrun(const std::string& name) {
  return absl::StartsWith(name, "TORCHELASTIC_") || name == "GROUP_WORLD_SIZE";
}

constexpr char kSettling[] = "COORDD_SETTLING_WINDOW";
constexpr int32_t kNoLimit = 1 << 17;  // coordd's own bound of a job

bool OfThisMachine(const std::string& name) {
  const auto is = [&name](const char* known) { return name == known; };
  const auto begins = [&name](const char* prefix) { return absl::StartsWith(name, prefix); };
  return std::any_of(std::begin(kOfThisMachine), std::end(kOfThisMachine), is) ||
         std::any_of(std::begin(kPrefixesOfThisMachine), std::end(kPrefixesOfThisMachine), begins);
}

int32_t MostWorkers(const RunOptions& options) {
  if (!options.discovery_script.empty()) return options.max_np > 0 ? options.max_np : kNoLimit;
  return options.size == 0 ? options.np : options.size;
}

}  // namespace

void Overlay(const Environment& more, Environment* environment) {
  for (const auto& [name, value] : more) {
    if (value.empty()) {
      environment->erase(name);
    } else {
      (*environment)[name] = value;
    }
  }
}

Environment TransferredEnvironment(const Environment& inherited) {
  Environment environment;
  for (const auto& [name, value] : inherited) {
    if (!OfThisMachine(name)) environment[name] = value;
  }
  return environment;
}

std::string LaunchId(const std::string& run, int32_t worker, int32_t start) {
  return absl::StrCat(run, ".", worker, ".", start);
}

Environment PlaceVariables(const WorkerPlace& place) {
  return {{"COORDD_RANK", absl::StrCat(place.rank)},
          {"COORDD_SIZE", absl::StrCat(place.size)},
          {"COORDD_LOCAL_RANK", absl::StrCat(place.local_rank)},
          {"COORDD_LOCAL_SIZE", absl::StrCat(place.local_size)}};
}

absl::Status CheckVariables(const RunOptions& options, const Environment& inherited) {
  for (const auto& [name, value] : options.variables) {
    if (value || inherited.count(name) > 0) continue;
    return absl::NotFoundError(
        absl::StrCat("-x ", name, ": is not set; expected -x ", name, "=VALUE"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Environment> CommonVariables(const RunOptions& options, const Rendezvous& rendezvous,
                                            const Environment& inherited) {
  COORDD_RETURN_IF_ERROR(CheckVariables(options, inherited));
  Environment environment = {{"COORDD_ADDR", rendezvous.address},
                             {"COORDD_JOB_ID", rendezvous.job},
                             {"COORDD_TOKEN_FILE", rendezvous.token_file},
                             {"COORDD_LAUNCH_ID", rendezvous.launch_id},  // the crew adds the rest
                             {"COORDD_TLS_CA", rendezvous.tls.ca},
                             {"COORDD_TLS_CERT", rendezvous.tls.cert},
                             {"COORDD_TLS_KEY", rendezvous.tls.key},
                             {"COORDD_METRICS", options.metrics == "off" ? "" : options.metrics}};
  if (options.min_np > 0) {
    environment["COORDD_MIN_WORKERS"] = absl::StrCat(options.min_np);
    environment["COORDD_MAX_WORKERS"] = absl::StrCat(MostWorkers(options));
    environment["COORDD_ON_FAILURE"] = options.on_failure;
    if (options.pods.min_workers > 0) {
      environment["COORDD_MIN_WORKERS"] = absl::StrCat(options.pods.min_workers);
      // Pods take their time, one after the other; when all are there nobody waits.
      if (Variable(inherited, kSettling).empty()) environment[kSettling] = "30";
    }
  }
  if (!options.port_range.empty()) environment["COORDD_PORT_RANGE"] = options.port_range;
  // Of a torchrun around coordrun: they would make torch look for that one's store.
  for (const auto& [name, value] : inherited)
    if (OfOuterTorchrun(name)) environment[name] = "";
  for (const auto& [name, value] : options.variables) {
    environment[name] = value ? *value : inherited.at(name);
  }
  return environment;
}

absl::StatusOr<Environment> EnvironmentOfWorker(const RunOptions& options,
                                                const Rendezvous& rendezvous, int32_t local_rank,
                                                const Environment& inherited,
                                                const TorchMaster& master) {
  COORDD_ASSIGN_OR_RETURN(const Environment common,
                          CommonVariables(options, rendezvous, inherited));
  Environment environment = inherited;
  for (const auto& [name, value] : PlaceVariables({.rank = options.first_rank + local_rank,
                                   .size = options.size == 0 ? options.np : options.size,
                                   .local_rank = local_rank,
                                   .local_size = options.np})) {
    environment[name] = value;
  }
  environment.erase(kTorchMarker);  // of an outer run
  const TorchPlace place = {.rank = options.first_rank + local_rank,
                            .size = options.size == 0 ? options.np : options.size,
                            .local_rank = local_rank,
                            .local_size = options.np,
                            // Where all machines have as many.
                            .group_rank = options.first_rank / options.np};
  for (const auto& [name, value] : TorchVariables(TorchNames(options), place, master)) {
    environment[name] = value;
  }
  Overlay(common, &environment);
  for (const auto& [name, value] : options.variables) {
    if (value) environment[name] = *value;  // -x NAME= is an empty value, not an absent one
  }
  return environment;
}

}  // namespace coordd
