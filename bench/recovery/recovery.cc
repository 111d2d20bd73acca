#include "bench/recovery/recovery.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
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
#include "bench/recovery/lasting.h"
#include "bench/recovery/ranks.h"
#include "bench/recovery/spinning.h"
#include "bench/recovery/writes.h"
#include "common/base/status_macros.h"

namespace coordd::bench {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);  // beyond which somebody hangs
constexpr absl::Duration kLookAtFiles = absl::Microseconds(200);
constexpr int64_t kWarmSteps = 20;  // before anything happens

int64_t NowNs() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

double Ms(int64_t from_ns, int64_t until_ns) {
  return static_cast<double>(until_ns - from_ns) / 1e6;
}

// Whether all who are not hit come to it in time.
bool AwaitAll(const RecoveryRanks& ranks,
              const std::function<bool(const RecoverySlot&)>& condition) {
  const absl::Time deadline = absl::Now() + kPatience;
  for (int32_t worker = 0; worker < ranks.workers(); ++worker) {
    while (!ranks.is_hit(worker) && !condition(ranks.slot(worker))) {
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
  int64_t generations = 0, ended_badly = 0, acted_again = 0, steps = 0;
  bool goes_on = false;

  // All have ended at the same step: who has made fewer has missed some.
  void AddMissed(const RecoveryRanks& ranks) {
    int64_t most = 0;
    for (int32_t worker = 0; worker < ranks.workers(); ++worker)
      if (!ranks.is_hit(worker)) most = std::max<int64_t>(most, ranks.slot(worker).steps);
    for (int32_t worker = 0; worker < ranks.workers(); ++worker)
      if (!ranks.is_hit(worker)) steps_lost += most - ranks.slot(worker).steps;
  }

  void Add(const RecoveryRanks& ranks) {
    for (int32_t worker = 0; worker < ranks.workers(); ++worker) {
      const RecoverySlot& slot = ranks.slot(worker);
      steps = std::max<int64_t>(steps, slot.steps);
      steps_lost += slot.steps_lost;
      wrong_results += slot.wrong;
      failed_collectives += slot.failed;
      generations = std::max<int64_t>(generations, slot.generation);
      longest_gap_ms = std::max(longest_gap_ms, Ms(0, slot.longest_gap_ns));
    }
  }
};

RecoveryJob JobOf(const RecoveryOptions& options, int32_t number) {
  return {.name = absl::StrCat("recovery-", number),
          .workers = options.workers,
          .elements = options.elements,
          .grows = options.victim == Victim::kNewcomer,
          .on_failure = options.on_failure};
}

// When the last of those who are not hit had its first result in the next generation; 0: somebody
// hangs. Each of them must have heard that it was `culprit` who was lost.
int64_t AwaitNext(const RecoveryRanks& ranks, int32_t victim, const std::string& culprit,
                  Totals& totals) {
  const bool recovered = AwaitAll(
      ranks, [](const RecoverySlot& slot) { return slot.generation > 1 && slot.began_ns > 0; });
  if (!recovered) ++totals.hung;
  const std::string place = absl::StrCat(culprit, " (host ");
  const std::string pid = absl::StrCat("pid ", ranks.pid(victim), ") was lost");
  int64_t last_ns = 0;
  for (int32_t worker = 0; worker < ranks.workers(); ++worker) {
    if (worker == victim) continue;
    const RecoverySlot& slot = ranks.slot(worker);
    last_ns = std::max<int64_t>(last_ns, slot.began_ns);
    if (totals.goes_on) continue;  // nobody hears anything
    const bool named = slot.failed > 0 && absl::StrContains(slot.reason, place) &&
                       absl::StrContains(slot.reason, pid);
    if (named) continue;
    ++totals.wrong_culprit;
    std::fprintf(stderr, "coordd-bench: %s was hit, but worker %d heard: %s\n", culprit.c_str(),
                 worker, slot.reason);
  }
  return recovered ? last_ns : 0;
}

// One job, of which one worker dies, or stands still, in the midst of its reductions.
absl::Status HitWorker(const RecoveryOptions& options, const std::string& coordd, int32_t number,
                       Totals& totals) {
  COORDD_ASSIGN_OR_RETURN(const auto ranks, RecoveryRanks::Start(coordd, JobOf(options, number)));
  if (!AwaitWarm(*ranks)) return absl::UnavailableError("a job did not get under way");
  const bool stops = options.victim == Victim::kStopped;
  const int32_t victim = number % options.workers;
  const std::string culprit = absl::StrCat("rank ", ranks->slot(victim).rank.load());
  const int64_t hit_ns = NowNs();
  ranks->Hit(victim, stops ? SIGSTOP : SIGKILL);
  const int64_t last_ns = AwaitNext(*ranks, victim, culprit, totals);
  if (last_ns > 0) totals.ms.push_back(Ms(hit_ns, last_ns));
  if (stops && last_ns > 0) {
    // The others' part of the step in which it stood still may be there: so it may come to the end
    // of that step, but of no further one.
    const int64_t steps = ranks->slot(victim).steps + 1;
    if (!ranks->GivesUp(victim, kPatience) || ranks->slot(victim).steps > steps ||
        ranks->slot(victim).generation > 1)
      ++totals.acted_again;
  }
  totals.ended_badly += ranks->Stop(kPatience);
  totals.AddMissed(*ranks);
  totals.Add(*ranks);
  return absl::OkStatus();
}

// One job, into which one more worker comes.
absl::Status LetOneIn(const RecoveryOptions& options, const std::string& coordd, int32_t number,
                      Totals& totals) {
  COORDD_ASSIGN_OR_RETURN(const auto ranks, RecoveryRanks::Start(coordd, JobOf(options, number)));
  if (!AwaitWarm(*ranks)) return absl::UnavailableError("a job did not get under way");
  COORDD_RETURN_IF_ERROR(ranks->Add());
  const bool joined = AwaitAll(
      *ranks, [](const RecoverySlot& slot) { return slot.generation > 1 && slot.began_ns > 0; });
  if (!joined) ++totals.hung;
  int64_t longest_ns = 0;
  for (int32_t worker = 0; worker < options.workers; ++worker)
    longest_ns = std::max<int64_t>(longest_ns, ranks->slot(worker).change_ns);
  if (joined) totals.ms.push_back(Ms(0, longest_ns));
  totals.ended_badly += ranks->Stop(kPatience);
  totals.Add(*ranks);
  return absl::OkStatus();
}

std::vector<std::string> CoorddArguments(const RecoveryOptions& options) {
  switch (options.victim) {
    case Victim::kStopped:
      return {"--lease", absl::FormatDuration(options.lease), "--heartbeat-interval",
              absl::FormatDuration(options.lease / 5)};
    case Victim::kNewcomer:  // nobody else is waited for
      return {"--settling-window", "200ms"};
    default:
      return {};
  }
}

absl::Status FreshJobs(const RecoveryOptions& options, Totals& totals) {
  COORDD_ASSIGN_OR_RETURN(const auto coordd, ServerProcess::StartCoordd(CoorddArguments(options)));
  const bool joins = options.victim == Victim::kNewcomer;
  for (int32_t number = 0; number < options.times; ++number)
    COORDD_RETURN_IF_ERROR(joins
                               ? LetOneIn(options, coordd->address().ToString(), number, totals)
                               : HitWorker(options, coordd->address().ToString(), number, totals));
  return absl::OkStatus();
}

// One job, to which nothing happens.
absl::Status LeaveAlone(const RecoveryOptions& options, Totals& totals) {
  COORDD_ASSIGN_OR_RETURN(const auto coordd, ServerProcess::StartCoordd({}));
  COORDD_ASSIGN_OR_RETURN(const auto ranks,
                          RecoveryRanks::Start(coordd->address().ToString(), JobOf(options, 0)));
  if (!AwaitWarm(*ranks)) return absl::UnavailableError("the job did not get under way");
  Pause(options.duration);
  totals.ended_badly += ranks->Stop(kPatience);
  totals.Add(*ranks);
  return absl::OkStatus();
}

// One job, whose coordd dies again and again.
absl::Status KillCoordd(const RecoveryOptions& options, Totals& totals) {
  COORDD_ASSIGN_OR_RETURN(const auto coordd,
                          MortalCoordd::Start(options.etcd, options.store_lease));
  COORDD_ASSIGN_OR_RETURN(const auto ranks,
                          RecoveryRanks::Start(coordd->addresses(), JobOf(options, 0)));
  if (!AwaitWarm(*ranks)) return absl::UnavailableError("the job did not get under way");
  for (int32_t number = 0; number < options.times; ++number) {
    const int64_t killed_ns = NowNs();
    COORDD_RETURN_IF_ERROR(coordd->Kill());
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
    COORDD_RETURN_IF_ERROR(coordd->Prepare());
    const int64_t next_ns = killed_ns + absl::ToInt64Nanoseconds(options.interval);
    Pause(absl::Nanoseconds(next_ns - NowNs()));
  }
  totals.ended_badly += ranks->Stop(kPatience);
  totals.Add(*ranks);
  return absl::OkStatus();
}

std::string NameOf(Victim victim) {
  for (const auto& [name, one] : Victims()) {
    if (one == victim) return name;
  }
  return "";
}

}  // namespace

std::map<std::string, Victim> Victims() {
  return {{"worker", Victim::kWorker},     {"stopped", Victim::kStopped},
          {"coordd", Victim::kCoordd},     {"coordd-writing", Victim::kCoorddWriting},
          {"newcomer", Victim::kNewcomer}, {"nobody", Victim::kNobody}};
}

absl::StatusOr<nlohmann::json> MeasureRecovery(const RecoveryOptions& options) {
  if (options.victim == Victim::kCoorddWriting) return MeasureWrites(options);
  Totals totals;
  totals.goes_on = options.on_failure == "continue";
  const bool alone = options.victim == Victim::kNobody;
  const bool coordd_dies = options.victim == Victim::kCoordd;
  COORDD_ASSIGN_OR_RETURN(const SpinningProcesses beside,
                          SpinningProcesses::Start(options.spinning));
  COORDD_RETURN_IF_ERROR(alone         ? LeaveAlone(options, totals)
                         : coordd_dies ? KillCoordd(options, totals)
                                       : FreshJobs(options, totals));
  nlohmann::json result{{"workers", options.workers},
                        {"kills", alone ? 0 : options.times},
                        {"victim", NameOf(options.victim)},
                        {"on_failure", options.on_failure},
                        {"elements", options.elements},
                        {"spinning", options.spinning},
                        {"steps_lost", totals.steps_lost},
                        {"hung", totals.hung},
                        {"wrong_results", totals.wrong_results},
                        {"failed_collectives", totals.failed_collectives},
                        {"ended_badly", totals.ended_badly},
                        {"generations", totals.generations}};
  if (!totals.goes_on) result["wrong_culprit"] = totals.wrong_culprit;
  if (alone) {
    result["seconds"] = absl::ToDoubleSeconds(options.duration);
    result["steps"] = totals.steps;
    result["longest_gap_ms"] = totals.longest_gap_ms;
    return result;
  }
  result["p50_ms"] = Median(totals.ms);
  result["worst_ms"] = Quantile(totals.ms, 1);
  if (options.victim == Victim::kStopped) {
    result["lease_ms"] = absl::ToDoubleMilliseconds(options.lease);
    result["acted_again"] = totals.acted_again;
  }
  if (coordd_dies) {
    result["store"] = options.etcd.empty() ? "sqlite" : "etcd";
    if (!options.etcd.empty())
      result["store_lease_ms"] = absl::ToDoubleMilliseconds(options.store_lease);
    result["ready_p50_ms"] = Median(totals.ready_ms);
    result["ready_worst_ms"] = Quantile(totals.ready_ms, 1);
    result["longest_gap_ms"] = totals.longest_gap_ms;
  }
  return result;
}

}  // namespace coordd::bench
