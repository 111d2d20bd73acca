#include "client/coordrun/checks/torch_traps.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "client/coordrun/checks/host_names.h"

namespace coordd {
namespace {

// Fewer idle cores for each rank than this may be meant: for the threads of data loaders, say.
constexpr int32_t kManyCores = 8;
// Two workers of a DataLoader with two batches each under way, of 32 pictures of 3 x 224 x 224
// floats, are 74 MiB for a rank. A container has 64 MiB if nobody says otherwise.
constexpr int64_t kSharedMemoryOfRank = int64_t{128} << 20;

// The same sentence, but for the hosts, is said once.
class Sentences {
 public:
  void Add(const HostReport& host, const std::string& rest) {
    hosts_[rest].push_back(NameOf(host));
  }

  void MoveTo(const char* check, std::vector<Finding>* findings) {
    for (const auto& [rest, hosts] : hosts_)
      findings->push_back({false, check, hosts[0], absl::StrCat(Names(hosts), ": ", rest)});
    hosts_.clear();
  }

 private:
  std::map<std::string, std::vector<std::string>> hosts_;
};

// The threads that `name` gives a rank; 0: it says nothing. OpenMP has a number for each level of
// nesting, and the first one counts here.
int32_t ThreadsGiven(const Environment& environment, const std::string& name) {
  const std::string value = Variable(environment, name);
  const std::vector<absl::string_view> levels = absl::StrSplit(value, ',');
  int32_t threads = 0;
  const bool is_number = absl::SimpleAtoi(absl::StripAsciiWhitespace(levels[0]), &threads);
  return is_number && threads > 0 ? threads : 0;
}

void JudgeThreads(const std::vector<HostReport>& reports, const Environment& environment,
                  const std::string& name, std::vector<Finding>* findings) {
  const int32_t threads = ThreadsGiven(environment, name);
  Sentences sentences;
  for (const HostReport* host : Hosts(reports)) {
    const int32_t cores = CoresOf(*host, reports);
    const int32_t ranks = host->report.local_size();
    // That a rank has no core for itself is said of the ranks already.
    if (threads == 0 || ranks < 1 || cores < ranks) continue;
    const int32_t share = cores / ranks;
    const std::string of =
        absl::StrCat(name, "=", threads, " gives ", ranks, ranks == 1 ? " rank " : " ranks ");
    if (threads > share) {
      sentences.Add(*host, absl::StrCat(of, int64_t{threads} * ranks, " threads on ", cores,
                                        cores == 1 ? " core" : " cores",
                                        ", which wait for each other: expected ", share,
                                        share == 1 ? "" : " at most", ", or unset"));
    } else if (threads == 1 && share >= kManyCores) {
      sentences.Add(*host, absl::StrCat(of, "one thread each and leaves ", cores - ranks, " of ",
                                        cores, " cores idle: expected ", share, ", or unset"));
    }
  }
  sentences.MoveTo("threads", findings);
}

bool RunsPython(const std::vector<std::string>& command) {
  return std::any_of(command.begin(), command.end(), [](const std::string& word) {
    const std::string file = word.substr(word.rfind('/') + 1);
    return absl::StartsWith(file, "python") || absl::EndsWith(file, ".py") || file == "torchrun" ||
           file == "accelerate" || file == "deepspeed";
  });
}

void JudgeSharedMemory(const std::vector<HostReport>& reports, std::vector<Finding>* findings) {
  Sentences sentences;
  for (const HostReport* host : Hosts(reports)) {
    const int64_t bytes = host->report.shared_memory_bytes();
    const int32_t ranks = host->report.local_size();
    if (bytes <= 0 || bytes >= kSharedMemoryOfRank * ranks) continue;
    sentences.Add(
        *host, absl::StrCat("/dev/shm has ", bytes >> 20, " MiB for ", ranks,
                            ranks == 1 ? " rank" : " ranks",
                            ", and torch's DataLoader passes the batches of its workers there, "
                            "which end by a bus error when it is full: expected ",
                            (kSharedMemoryOfRank * ranks) >> 20,
                            " MiB (docker run --shm-size, in a pod an emptyDir of medium Memory)"));
  }
  sentences.MoveTo("shared memory", findings);
}

// A variable that takes from coordd what it does.
struct Trap {
  const char* name;
  bool (*is_set)(const std::string& value);
  const char* text;
};

bool IsAnything(const std::string& value) { return !value.empty(); }
bool IsZero(const std::string& value) { return value == "0"; }
bool IsOne(const std::string& value) { return value == "1"; }

constexpr Trap kTraps[] = {
    {"NCCL_COMM_BLOCKING", IsOne,
     "makes NCCL's communicators blocking, and coordd, which could not give one up that waits for "
     "a "
     "lost rank, does not use NCCL then: expected 0, or unset"},
    {"NCCL_COMM_ID", IsAnything,
     "has all communicators of NCCL meet at one address, and coordd makes several, and new ones "
     "after a loss: expected it unset"},
    {"NCCL_LOCAL_REGISTER", IsZero,
     "switches off the buffers that coordd registers with NCCL: expected it unset, or "
     "--no-gpu-registration"},
    {"TORCH_DISTRIBUTED_DEBUG",
     [](const std::string& value) { return absl::EqualsIgnoreCase(value, "DETAIL"); },
     "has torch.distributed compare each call of all ranks before coordd has it, which costs a "
     "round trip every time: expected it for the search of an error only"},
};

}  // namespace

std::vector<Finding> JudgeTorchTraps(const std::vector<HostReport>& reports,
                                     const Environment& environment,
                                     const std::vector<std::string>& command) {
  std::vector<Finding> findings;
  JudgeThreads(reports, environment, "OMP_NUM_THREADS", &findings);
  JudgeThreads(reports, environment, "MKL_NUM_THREADS", &findings);
  if (RunsPython(command)) JudgeSharedMemory(reports, &findings);
  for (const Trap& trap : kTraps) {
    const std::string value = Variable(environment, trap.name);
    if (!trap.is_set(value)) continue;
    findings.push_back(
        {false, "variables", "", absl::StrCat(trap.name, "=", value, " ", trap.text)});
  }
  return findings;
}

}  // namespace coordd
