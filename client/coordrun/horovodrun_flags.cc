#include "client/coordrun/horovodrun_flags.h"

#include <cstddef>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace coordd {
namespace {

enum class Does {
  kRename,   // `with` is our name; a value follows as it is
  kPrefix,   // takes a value, which is appended to `with`: one argument
  kNothing,  // holds anyway
  kSkip,     // takes a value; neither matters here
  kAnswer,   // refused with the sentence `with`
};

struct Flag {
  const char* name;
  Does does;
  const char* with;
};

constexpr char kTuning[] =
    "there is nothing to tune here: how tensors are packed and reduced is measured, not set; leave "
    "it out";

constexpr Flag kFlags[] = {
    {"-np", Does::kRename, "--np"},
    {"--num-proc", Does::kRename, "--np"},
    {"--hosts", Does::kRename, "-H"},
    {"-hostfile", Does::kRename, "--hostfile"},
    {"--network-interface", Does::kRename, "--network-interfaces"},
    {"--log-level", Does::kPrefix, "-xHOROVOD_LOG_LEVEL="},
    {"--stall-check-warning-time-seconds", Does::kPrefix, "--coordd-arg=--stall-warning="},
    {"--stall-check-shutdown-time-seconds", Does::kPrefix, "--coordd-arg=--stall-abort="},
    {"--gloo-timeout-seconds", Does::kPrefix, "-xCOORDD_JOIN_TIMEOUT="},
    {"--timeline-filename", Does::kPrefix, "-xCOORDD_TIMELINE="},
    {"--timeline-mark-cycles", Does::kRename, "-xCOORDD_TIMELINE_MARK_CYCLES=1"},
    {"--no-stall-check", Does::kAnswer,
     "stalls are always watched: expected --coordd-arg=--stall-abort=SECONDS for more patience"},
    {"--disable-cache", Does::kNothing, ""},  // of ssh checks: there is none
    {"--gloo", Does::kNothing, ""},
    {"--stall-check", Does::kNothing, ""},
    {"--log-without-timestamp", Does::kNothing, ""},
    {"--log-hide-timestamp", Does::kNothing, ""},
    {"--no-log-hide-timestamp", Does::kNothing, ""},
    {"--no-timeline-mark-cycles", Does::kNothing, ""},
    {"--no-autotune", Does::kNothing, ""},
    {"--no-hierarchical-allreduce", Does::kNothing, ""},
    {"--no-hierarchical-allgather", Does::kNothing, ""},
    {"--no-torus-allreduce", Does::kNothing, ""},
    {"--mpi-threads-disable", Does::kNothing, ""},
    {"--no-mpi-threads-disable", Does::kNothing, ""},
    {"--cycle-time-ms", Does::kSkip, ""},  // no cycle: nothing waits
    {"--cache-capacity", Does::kSkip, ""},
    {"--num-nccl-streams", Does::kSkip, ""},
    {"--mpi", Does::kAnswer,
     "workers need no MPI: leave it out, or give --launcher mpirun to start them with mpirun"},
    {"--mpi-args", Does::kAnswer,
     "expected --launcher mpirun --launcher-arg=ARGUMENT, once for each argument"},
    {"--binding-args", Does::kAnswer,
     "expected --launcher mpirun --launcher-arg=ARGUMENT, or srun's --launcher-arg=--cpu-bind=..."},
    {"--tcp", Does::kAnswer, "expected -x UCX_TLS=tcp,self for TCP between the hosts"},
    {"--jsrun", Does::kAnswer, "jsrun starts the workers itself: jsrun -n 4 python train.py"},
    {"-cb", Does::kAnswer, "expected coordctl check-build"},
    {"--check-build", Does::kAnswer, "expected coordctl check-build"},
    {"--config-file", Does::kAnswer, "there is no configuration file: give the flags themselves"},
    {"--thread-affinity", Does::kAnswer,
     "the launcher binds processes to cores: --launcher-arg=--cpu-bind=cores with srun"},
    {"--fusion-threshold-mb", Does::kAnswer, kTuning},
    {"--hierarchical-allreduce", Does::kAnswer, kTuning},
    {"--hierarchical-allgather", Does::kAnswer, kTuning},
    {"--torus-allreduce", Does::kAnswer, kTuning},
    {"--autotune", Does::kAnswer, kTuning},
    {"--autotune-log-file", Does::kAnswer, kTuning},
    {"--autotune-warmup-samples", Does::kAnswer, kTuning},
    {"--autotune-steps-per-sample", Does::kAnswer, kTuning},
    {"--autotune-bayes-opt-max-samples", Does::kAnswer, kTuning},
    {"--autotune-gaussian-process-noise", Does::kAnswer, kTuning},
    {"--log-with-timestamp", Does::kAnswer,
     "lines carry the rank; for the time, write to --output-dir and stamp with ts(1)"},
    {"-prefix-timestamp", Does::kAnswer,
     "lines carry the rank; pipe them through ts(1) for the time"},
    {"--prefix-output-with-timestamp", Does::kAnswer,
     "lines carry the rank; pipe them through ts(1) for the time"},
    {"--min-num-proc", Does::kRename, "--min-np"},
    {"--max-num-proc", Does::kRename, "--max-np"},
    {"--slots", Does::kRename, "--slots-per-host"},
};

const Flag* Find(const std::string& name) {
  for (const Flag& flag : kFlags) {
    if (name == flag.name) return &flag;
  }
  return nullptr;
}

}  // namespace

HorovodrunFlag FindHorovodrunFlag(const std::string& name) {
  const Flag* flag = Find(name);
  if (flag == nullptr) return {};
  if (flag->does == Does::kRename) return {.ours = flag->with};
  return {.ours = "", .takes_value = flag->does == Does::kPrefix || flag->does == Does::kSkip};
}

absl::StatusOr<std::vector<std::string>> TranslateHorovodrun(
    const std::vector<std::string>& arguments) {
  std::vector<std::string> ours;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const size_t equals =
        absl::StartsWith(arguments[i], "--") ? arguments[i].find('=') : std::string::npos;
    const std::string name = arguments[i].substr(0, equals);
    const Flag* flag = Find(name);
    if (flag == nullptr) {
      ours.push_back(arguments[i]);
      continue;
    }
    const bool takes_value = flag->does == Does::kPrefix || flag->does == Does::kSkip;
    std::string value = equals == std::string::npos ? "" : arguments[i].substr(equals + 1);
    if (takes_value && equals == std::string::npos) {
      if (++i == arguments.size()) {
        return absl::InvalidArgumentError(absl::StrCat(name, ": expected a value"));
      }
      value = arguments[i];
    }
    switch (flag->does) {
      case Does::kRename:
        ours.push_back(flag->with);
        if (equals != std::string::npos) ours.push_back(value);
        break;
      case Does::kPrefix:
        ours.push_back(absl::StrCat(flag->with, value));
        break;
      case Does::kNothing:
      case Does::kSkip:
        break;
      case Does::kAnswer:
        return absl::InvalidArgumentError(absl::StrCat(name, ": ", flag->with));
    }
  }
  return ours;
}

}  // namespace coordd
