#include "bench/recovery/recovery.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "bench/control/server_process.h"
#include "bench/control/statistics.h"
#include "bench/recovery/ranks.h"
#include "common/status_macros.h"

namespace coordd::bench {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);  // beyond which somebody hangs
constexpr absl::Duration kLookAtFiles = absl::Microseconds(200);
constexpr int64_t kWarmSteps = 20;  // before the first kill

int64_t NowNs() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

double Ms(int64_t from_ns, int64_t until_ns) {
  return static_cast<double>(until_ns - from_ns) / 1e6;
}

// A directory that is gone with it.
class Directory {
 public:
  Directory() {
    std::error_code error;
    path_ = std::filesystem::temp_directory_path(error).string() + "/coordd-bench.XXXXXX";
    if (mkdtemp(path_.data()) == nullptr) path_.clear();
  }
  ~Directory() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Whether all who are not killed come to it in time.
bool AwaitAll(const RecoveryRanks& ranks,
              const std::function<bool(const RecoverySlot&)>& condition) {
  const absl::Time deadline = absl::Now() + kPatience;
  for (int32_t worker = 0; worker < ranks.workers(); ++worker) {
    while (!ranks.killed(worker) && !condition(ranks.slot(worker))) {
      if (absl::Now() > deadline) return false;
      Pause(kLookAtFiles);
    }
  }
  return true;
}

bool AwaitWarm(const RecoveryRanks& ranks) {
  return AwaitAll(ranks, [](const RecoverySlot& slot) { return slot.steps >= kWarmSteps; });
}

struct Totals {
  std::vector<double> ms, ready_ms;
  double longest_gap_ms = 0;
  int64_t steps_lost = 0, hung = 0, wrong_culprit = 0, wrong_results = 0, failed_collectives = 0;
  int64_t generations = 0, ended_badly = 0;

  void Add(const RecoveryRanks& ranks) {
    for (int32_t worker = 0; worker < ranks.workers(); ++worker) {
      const RecoverySlot& slot = ranks.slot(worker);
      steps_lost += slot.steps_lost;
      wrong_results += slot.wrong;
      failed_collectives += slot.failed;
      generations = std::max<int64_t>(generations, slot.generation);
      longest_gap_ms = std::max(longest_gap_ms, Ms(0, slot.longest_gap_ns));
    }
  }
};

// One job, of which one worker dies in the midst of its reductions.
absl::Status KillWorker(const RecoveryOptions& options, const HostPort& coordd, int32_t number,
                        Totals& totals) {
  COORDD_ASSIGN_OR_RETURN(const auto ranks,
                          RecoveryRanks::Start(coordd, absl::StrCat("recovery-", number),
                                               options.workers, options.elements));
  if (!AwaitWarm(*ranks)) return absl::UnavailableError("a job did not get under way");
  const int32_t victim = number % options.workers;
  const std::string culprit = absl::StrCat("rank ", ranks->slot(victim).rank.load());
  const std::string place = absl::StrCat(culprit, " (host ");
  const std::string pid = absl::StrCat("pid ", ranks->pid(victim), ") was lost");
  const int64_t killed_ns = NowNs();
  ranks->Kill(victim);
  const bool recovered = AwaitAll(
      *ranks, [](const RecoverySlot& slot) { return slot.generation > 1 && slot.began_ns > 0; });
  if (!recovered) ++totals.hung;
  int64_t last_ns = 0;
  for (int32_t worker = 0; worker < options.workers; ++worker) {
    if (worker == victim) continue;
    const RecoverySlot& slot = ranks->slot(worker);
    last_ns = std::max<int64_t>(last_ns, slot.began_ns);
    const bool named = slot.failed > 0 && absl::StrContains(slot.reason, place) &&
                       absl::StrContains(slot.reason, pid);
    if (named) continue;
    ++totals.wrong_culprit;
    std::fprintf(stderr, "coordd-bench: %s was killed, but worker %d heard: %s\n", culprit.c_str(),
                 worker, slot.reason);
  }
  if (recovered) totals.ms.push_back(Ms(killed_ns, last_ns));
  totals.ended_badly += ranks->Stop(kPatience);
  totals.Add(*ranks);
  return absl::OkStatus();
}

absl::Status KillWorkers(const RecoveryOptions& options, Totals& totals) {
  COORDD_ASSIGN_OR_RETURN(const auto coordd, ServerProcess::StartCoordd({}));
  for (int32_t number = 0; number < options.kills; ++number)
    COORDD_RETURN_IF_ERROR(KillWorker(options, coordd->address(), number, totals));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ServerProcess>> StartLasting(const std::string& listen,
                                                            const std::string& directory) {
  return ServerProcess::Start({BesideUs("coordd"), "--listen", listen, "--http", "off", "--store",
                               absl::StrCat("sqlite:", directory, "/state"), "--log-level", "error",
                               "--exit-with", absl::StrCat(getpid()), "--connection-file", ""});
}

// One job, whose coordd dies again and again.
absl::Status KillCoordd(const RecoveryOptions& options, Totals& totals) {
  const Directory directory;
  if (directory.path().empty()) return absl::UnavailableError("no directory for coordd's state");
  COORDD_ASSIGN_OR_RETURN(auto coordd, StartLasting("127.0.0.1:0", directory.path()));
  const HostPort address = coordd->address();
  COORDD_ASSIGN_OR_RETURN(
      const auto ranks,
      RecoveryRanks::Start(address, "recovery", options.workers, options.elements));
  if (!AwaitWarm(*ranks)) return absl::UnavailableError("the job did not get under way");
  for (int32_t number = 0; number < options.kills; ++number) {
    const int64_t killed_ns = NowNs();
    coordd.reset();
    COORDD_ASSIGN_OR_RETURN(coordd, StartLasting(address.ToString(), directory.path()));
    const int64_t ready_ns = NowNs();
    totals.ready_ms.push_back(Ms(killed_ns, ready_ns));
    const bool back =
        AwaitAll(*ranks, [ready_ns](const RecoverySlot& slot) { return slot.fresh_ns > ready_ns; });
    if (!back) {
      ++totals.hung;
      break;
    }
    int64_t last_ns = 0;
    for (int32_t worker = 0; worker < options.workers; ++worker)
      last_ns = std::max<int64_t>(last_ns, ranks->slot(worker).fresh_ns);
    totals.ms.push_back(Ms(killed_ns, last_ns));
    const int64_t next_ns = killed_ns + absl::ToInt64Nanoseconds(options.interval);
    Pause(absl::Nanoseconds(next_ns - NowNs()));
  }
  totals.ended_badly += ranks->Stop(kPatience);
  totals.Add(*ranks);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<nlohmann::json> MeasureRecovery(const RecoveryOptions& options) {
  Totals totals;
  COORDD_RETURN_IF_ERROR(options.coordd_dies ? KillCoordd(options, totals)
                                             : KillWorkers(options, totals));
  nlohmann::json result{{"workers", options.workers},
                        {"kills", options.kills},
                        {"victim", options.coordd_dies ? "coordd" : "worker"},
                        {"elements", options.elements},
                        {"p50_ms", Median(totals.ms)},
                        {"worst_ms", Quantile(totals.ms, 1)},
                        {"steps_lost", totals.steps_lost},
                        {"hung", totals.hung},
                        {"wrong_culprit", totals.wrong_culprit},
                        {"wrong_results", totals.wrong_results},
                        {"failed_collectives", totals.failed_collectives},
                        {"ended_badly", totals.ended_badly},
                        {"generations", totals.generations}};
  if (options.coordd_dies) {
    result["ready_p50_ms"] = Median(totals.ready_ms);
    result["ready_worst_ms"] = Quantile(totals.ready_ms, 1);
    result["longest_gap_ms"] = totals.longest_gap_ms;
  }
  return result;
}

}  // namespace coordd::bench
