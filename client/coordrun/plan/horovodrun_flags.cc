#include "client/coordrun/plan/horovodrun_flags.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace coordd {
namespace {

enum class Does {
  kRename,   // `with` is our name; a value follows as it is
  kPrefix,   // takes a value, which is appended to `with`: one argument
  kNothing,  // holds anyway
  kSkip,     // takes a value; neither matters here, which is said
  kUnused,   // without a value; else as kSkip
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
constexpr char kMpi[] =
    "that is mpirun's: expected --launcher mpirun --launcher-arg=ARGUMENT, once for each argument "
    "and each value";
constexpr char kJsrun[] =
    "that is jsrun's, which starts the workers itself: jsrun -n 2 -a 6 -g 6 -c 42 python train.py, "
    "without coordrun";
constexpr char kTcp[] = "expected -x UCX_TLS=tcp,self for TCP between the hosts";
constexpr char kRankfile[] =
    "ddlrun's rank file is not read: expected the hosts with -H h1:6,h2:6; the ranks of a host are "
    "together";
constexpr char kMpiarg[] =
    "that is for ddlrun's mpirun, and workers need no MPI: leave it out, or expected --launcher "
    "mpirun --launcher-arg=ARGUMENT to start them with mpirun";

constexpr char kTorchrunCount[] =
    "that is torchrun's: expected -np with the workers of all hosts together, such as coordrun -np "
    "4 "
    "python train.py";
constexpr char kTorchrunNodes[] =
    "that is torchrun's, which is started on each host; coordrun is started once: expected the "
    "hosts "
    "with -H h1:4,h2:4";
constexpr char kTorchrunMeeting[] =
    "that is torchrun's: the workers of coordrun find each other through coordd; leave it out";
constexpr char kTorchrunPort[] =
    "that is torchrun's: MASTER_ADDR and MASTER_PORT are set for the workers; leave it out, or "
    "give "
    "--port-range FIRST-LAST where a firewall is";

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
    {"--jsrun", Does::kAnswer, "jsrun starts the workers itself: jsrun -n 4 python train.py"},
    {"-cb", Does::kAnswer, "expected coordctl check-build"},
    {"--check-build", Does::kAnswer, "expected coordctl check-build"},
    {"--config-file", Does::kAnswer, "there is no configuration file: give the flags themselves"},
    {"--thread-affinity", Does::kAnswer,
     "the launcher binds processes to cores: --launcher-arg=--cpu-bind=cores with srun"},
    {"--fusion-threshold-mb", Does::kSkip, ""},
    {"--hierarchical-allreduce", Does::kUnused, ""},
    {"--hierarchical-allgather", Does::kUnused, ""},
    {"--torus-allreduce", Does::kUnused, ""},
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
    {"-bind-to", Does::kAnswer, kMpi},
    {"--bind-to", Does::kAnswer, kMpi},
    {"-map-by", Does::kAnswer, kMpi},
    {"--map-by", Does::kAnswer, kMpi},
    {"-rank-by", Does::kAnswer, kMpi},
    {"--rank-by", Does::kAnswer, kMpi},
    {"-mca", Does::kAnswer, kMpi},
    {"--mca", Does::kAnswer, kMpi},
    {"--oversubscribe", Does::kAnswer, kMpi},
    {"--allow-run-as-root", Does::kAnswer, kMpi},
    {"-genv", Does::kAnswer, kMpi},
    {"-ppn", Does::kAnswer, kMpi},
    {"--nrs", Does::kAnswer, kJsrun},
    {"--rs_per_host", Does::kAnswer, kJsrun},
    {"--tasks_per_rs", Does::kAnswer, kJsrun},
    {"--gpu_per_rs", Does::kAnswer, kJsrun},
    {"--cpu_per_rs", Does::kAnswer, kJsrun},
    {"--smpiargs", Does::kAnswer, kJsrun},
    // ddlrun's; each of its long names may have one dash.
    {"-m", Does::kRename, "--mode"},
    {"--m", Does::kRename, "--mode"},
    {"-mode", Does::kRename, "--mode"},
    {"-accelerators", Does::kRename, "--accelerators"},
    {"-nodes", Does::kRename, "--nodes"},
    {"-racks", Does::kRename, "--racks"},
    {"-aisles", Does::kRename, "--aisles"},
    {"--H", Does::kRename, "-H"},
    {"-host", Does::kRename, "-H"},
    {"--host", Does::kRename, "-H"},
    {"-no_ddloptions", Does::kNothing, ""},
    {"--no_ddloptions", Does::kNothing, ""},
    {"-ddlarg", Does::kSkip, ""},
    {"--ddlarg", Does::kSkip, ""},
    {"-ddloption", Does::kSkip, ""},
    {"--ddloption", Does::kSkip, ""},
    {"-rf", Does::kAnswer, kRankfile},
    {"--rf", Does::kAnswer, kRankfile},
    {"-rankfile", Does::kAnswer, kRankfile},
    {"--rankfile", Does::kAnswer, kRankfile},
    {"-mpiarg", Does::kAnswer, kMpiarg},
    {"--mpiarg", Does::kAnswer, kMpiarg},
    {"-tcp", Does::kAnswer, kTcp},
    {"--tcp", Does::kAnswer, kTcp},
    {"--nproc-per-node", Does::kAnswer, kTorchrunCount},
    {"--nnodes", Does::kAnswer, kTorchrunNodes},
    {"--node-rank", Does::kAnswer, kTorchrunNodes},
    {"--standalone", Does::kAnswer, kTorchrunMeeting},
    {"--rdzv-backend", Does::kAnswer, kTorchrunMeeting},
    {"--rdzv-endpoint", Does::kAnswer, kTorchrunMeeting},
    {"--rdzv-id", Does::kAnswer, kTorchrunMeeting},
    {"--rdzv-conf", Does::kAnswer, kTorchrunMeeting},
    {"--master-addr", Does::kAnswer, kTorchrunPort},
    {"--master-port", Does::kAnswer, kTorchrunPort},
};
// Of jsrun, whose values may stand in the same word: -r1, -bpacked:7, -dpacked.
constexpr Flag kJsrunFlag = {"", Does::kAnswer, kJsrun};
constexpr absl::string_view kJsrunNumbers = "rgac";

bool IsJsruns(absl::string_view name) {
  if (name.size() < 2 || name[0] != '-') return false;
  for (const absl::string_view text : {"-bpacked", "-brs", "-bnone", "-dpacked", "-dplane"})
    if (absl::StartsWith(name, text)) return true;
  return absl::StrContains(kJsrunNumbers, name[1]) &&
         std::all_of(name.begin() + 2, name.end(),
                     [](char c) { return absl::ascii_isdigit(static_cast<unsigned char>(c)); });
}

bool HasValue(Does does) { return does == Does::kPrefix || does == Does::kSkip; }

const Flag* Find(const std::string& name) {
  // torchrun takes --nproc_per_node for --nproc-per-node.
  const std::string dashed = absl::StrReplaceAll(name, {{"_", "-"}});
  for (const Flag& flag : kFlags) {
    if (name == flag.name || dashed == flag.name) return &flag;
  }
  return IsJsruns(name) ? &kJsrunFlag : nullptr;
}

// The value within -np2, -np=2, -n=2; empty: it is none of these.
std::string CountWithin(absl::string_view argument) {
  const bool theirs = absl::ConsumePrefix(&argument, "-np");
  if (!theirs && !absl::ConsumePrefix(&argument, "-n")) return "";
  const bool equals = absl::ConsumePrefix(&argument, "=");
  if (!theirs && !equals) return "";
  const bool digits =
      !argument.empty() && std::all_of(argument.begin(), argument.end(), [](char c) {
        return absl::ascii_isdigit(static_cast<unsigned char>(c));
      });
  return equals || digits ? std::string(argument) : "";
}

std::string IgnoredText(const std::vector<std::string>& ignored) {
  if (ignored.empty()) return "";
  return absl::StrCat(absl::StrJoin(ignored, ", "), ignored.size() == 1 ? " is" : " are",
                      " ignored: how tensors are packed and reduced is measured here, not set");
}

}  // namespace

HorovodrunFlag FindHorovodrunFlag(const std::string& name) {
  const Flag* flag = Find(name);
  if (flag == nullptr) return {};
  if (flag->does == Does::kRename) return {.ours = flag->with};
  return {.ours = "", .takes_value = HasValue(flag->does)};
}

absl::StatusOr<std::vector<std::string>> TranslateHorovodrun(
    const std::vector<std::string>& arguments, std::string* note) {
  std::vector<std::string> ours, ignored;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const size_t equals =
        absl::StartsWith(arguments[i], "--") ? arguments[i].find('=') : std::string::npos;
    const std::string name = arguments[i].substr(0, equals);
    if (const std::string count = CountWithin(arguments[i]); !count.empty()) {
      ours.push_back(absl::StrCat("--np=", count));
      continue;
    }
    const Flag* flag = Find(name);
    if (flag == nullptr) {
      ours.push_back(arguments[i]);
      continue;
    }
    const bool takes_value = HasValue(flag->does);
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
        break;
      case Does::kSkip:
      case Does::kUnused:
        ignored.push_back(name);
        break;
      case Does::kAnswer:
        return absl::InvalidArgumentError(absl::StrCat(name, ": ", flag->with));
    }
  }
  if (note != nullptr) *note = IgnoredText(ignored);
  return ours;
}

}  // namespace coordd
