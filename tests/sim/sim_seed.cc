#include "tests/sim/sim_seed.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/random.h"

namespace coordd {
namespace {

struct FaultText {
  Fault fault;
  const char* name;
  const char* about;
};
constexpr FaultText kFaults[] = {
    {Fault::kKill, "kill", "workers die"},
    {Fault::kRestart, "restart", "coordd dies, and is started again on what it had stored"},
    {Fault::kSleep, "sleep", "coordd sleeps for a lease, while streams end"},
    {Fault::kBreak, "break", "streams break of those who are coming back to coordd"},
    {Fault::kChange, "change", "the members ask for the next generation"},
    {Fault::kDrain, "drain", "an operator, or its own process, asks a worker to leave"},
    {Fault::kEvict, "evict", "an operator evicts a worker"},
    {Fault::kPartition, "partition",
     "a worker and coordd do not reach each other, or one does not reach the other"},
    {Fault::kCut, "cut", "what a worker sends to another one is lost, perhaps in both directions"},
    {Fault::kNewcomers, "newcomers", "workers come while the job runs, and take its state"},
    {Fault::kPause, "pause", "a worker gets no turn for up to one and a half leases, and goes on"},
    {Fault::kStale, "stale",
     "what was under way on a stream arrives after the next was opened, or arrives once more"},
    {Fault::kRelay, "relay",
     "the streams of several workers break at once, which says nothing of them"},
};

}  // namespace

FaultSet AllFaults() {
  FaultSet all;
  for (const FaultText& text : kFaults) all.insert(text.fault);
  return all;
}

absl::string_view Name(Fault fault) { return kFaults[static_cast<size_t>(fault)].name; }
std::string About(Fault fault) { return kFaults[static_cast<size_t>(fault)].about; }

std::string ToString(const FaultSet& faults) {
  if (faults.empty()) return "none";
  return absl::StrJoin(faults, ",",
                       [](std::string* out, Fault fault) { absl::StrAppend(out, Name(fault)); });
}

absl::StatusOr<FaultSet> ParseFaults(absl::string_view list) {
  if (list == "all") return AllFaults();
  FaultSet faults;
  if (list == "none") return faults;
  for (absl::string_view name : absl::StrSplit(list, ',')) {
    bool known = false;
    for (const FaultText& text : kFaults) {
      if (name != text.name) continue;
      faults.insert(text.fault);
      known = true;
    }
    if (known) continue;
    return absl::InvalidArgumentError(absl::StrCat("no fault \"", name, "\", expected of ",
                                                   ToString(AllFaults()), ", or all or none"));
  }
  return faults;
}

RecoverySimOptions RecoveryOptionsOf(uint64_t seed, const FaultSet& faults) {
  Random random(seed);  // the simulator has one of its own
  RecoverySimOptions options;
  const bool some_leave = faults.contains(Fault::kDrain) || faults.contains(Fault::kEvict) ||
                          faults.contains(Fault::kCut);
  options.workers = static_cast<int32_t>(2 + random.Below(4)) + (some_leave ? 1 : 0);
  const std::pair<Fault, int32_t*> counts[] = {
      {Fault::kKill, &options.kills},           {Fault::kRestart, &options.crashes},
      {Fault::kSleep, &options.dozes},          {Fault::kChange, &options.changes},
      {Fault::kDrain, &options.drains},         {Fault::kEvict, &options.evictions},
      {Fault::kPartition, &options.partitions}, {Fault::kCut, &options.cuts},
      {Fault::kNewcomers, &options.newcomers},  {Fault::kPause, &options.pauses},
      {Fault::kRelay, &options.relays},
  };
  std::vector<int32_t*> chosen;
  int32_t sum = 0;
  for (const auto& [fault, count] : counts) {
    const int32_t drawn = static_cast<int32_t>(random.Below(4));
    *count = faults.contains(fault) ? drawn : 0;
    sum += *count;
    if (faults.contains(fault)) chosen.push_back(count);
  }
  options.stale = faults.contains(Fault::kStale);
  if (sum == 0 && !chosen.empty()) *chosen[random.Below(chosen.size())] = 1;
  return options;
}

SimFaults ScheduleFaultsOf(uint64_t seed, const FaultSet& faults) {
  SimFaults counts;
  if (faults.contains(Fault::kRestart)) counts.crashes = static_cast<int64_t>(1 + seed % 5);
  if (faults.contains(Fault::kBreak)) counts.breaks = static_cast<int64_t>(seed % 4);
  return counts;
}

std::string Replay(absl::string_view simulator, uint64_t seed, const FaultSet& faults,
                   absl::string_view bug) {
  return absl::StrCat("build/bin/coordd-sim --simulator ", simulator, " --seed ", seed,
                      " --seeds 1 --faults ", ToString(faults),
                      bug.empty() ? "" : absl::StrCat(" --bug ", bug), " --log");
}

}  // namespace coordd
