// coordd-sim: the simulators of tests/sim over as many seeds as asked for, for developers.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/usage_failure.h"
#include "tests/sim/random_programs.h"
#include "tests/sim/sim_seed.h"

namespace coordd {
namespace {

constexpr int kExitWrong = 1;
constexpr int kExitUsage = 2;

constexpr char kDescription[] =
    R"(coordd-sim: coordd and its workers, all of what they decide, on one thread and a virtual clock.

Each seed is one history: which message arrives next, who dies and when, is drawn from it. After each
step the invariants of what coordd says (tests/server/support/invariants.h) and of its state are checked, and that
  recovery   every survivor gets every result once, the same as all others, of one generation, and
             after the last fault all programs end; and the store keeps what it has acknowledged
  schedules  no order of events makes two ranks execute different things, and programs that change
             what they repeat end
Messages are delayed and interleaved at will, disks take their time, whatever the faults.
)";

constexpr char kFooter[] = R"(
  coordd-sim --seeds 1000
  coordd-sim --seeds 100000 --seed 1001 --faults kill,restart,sleep --keep-going
  coordd-sim --simulator recovery --bug skips-repair      must fail: the simulator notices mistakes

Exit codes: 0 all is well; 1 a seed has failed: what went wrong, and the line that runs it again, are
on stderr; 2 a flag is wrong.)";

const std::map<std::string, RecoveryBug> kRecoveryBugs = {
    {"skips-repair", RecoveryBug::kSkipsRepair},
    {"buffer-reused-too-early", RecoveryBug::kBufferReusedTooEarly},
    {"plan-not-stored", RecoveryBug::kPlanIsNotStored},
    {"change-not-asked-again", RecoveryBug::kChangeNotAskedAgain},
    {"drain-not-stored", RecoveryBug::kDrainNotStored},
    {"sets-not-stored", RecoveryBug::kSetsNotStored},
    {"newcomers-apart", RecoveryBug::kNewcomersApart},
    {"sync-skipped", RecoveryBug::kSyncSkipped},
    {"newcomer-gives", RecoveryBug::kNewcomerGives},
    {"change-of-any-generation", RecoveryBug::kChangeOfAnyGeneration},
    {"stale-is-taken", RecoveryBug::kStaleIsTaken},
    {"answered-before-stored", RecoveryBug::kAnsweredBeforeStored},
    {"bit-kept-over-generation", RecoveryBug::kBitKeptOverGeneration},
    {"versions-not-reported", RecoveryBug::kVersionsNotReported},
    {"late-answer-counts", RecoveryBug::kLateAnswerCounts},
};
const std::map<std::string, PlantedBug> kScheduleBugs = {
    {"cut-too-early", PlantedBug::kCutTooEarly},
    {"launches-when-frozen", PlantedBug::kLaunchesWhenFrozen},
    {"report-not-dropped", PlantedBug::kReportNotDropped},
    {"no-break", PlantedBug::kNoBreak},
    {"forgets-slots-early", PlantedBug::kForgetsSlotsEarly},
    {"means-another-slot", PlantedBug::kMeansAnotherSlot},
    {"join-not-taken-back", PlantedBug::kJoinNotTakenBack},
    {"not-staged", PlantedBug::kNotStaged},
    {"plans-before-all-are-back", PlantedBug::kPlansBeforeAllAreBack},
    {"generations-start-anew", PlantedBug::kGenerationsStartAnew},
    {"no-fencing", PlantedBug::kNoFencing},
    {"missed-not-told", PlantedBug::kMissedNotTold},
    {"unanswered-not-reported", PlantedBug::kUnansweredNotReported},
};

struct Flags {
  uint64_t seed = 1;
  uint64_t seeds = 100;
  std::string simulator = "both";
  FaultSet faults = AllFaults();
  std::string bug;
  bool keep_going = false, json = false, log = false;
};

struct Totals {
  int64_t runs = 0, failed = 0;
  std::optional<uint64_t> first_failed;
  int64_t generations = 0, schedules = 0, batches = 0, restarts = 0, suspended = 0, resumed = 0;
};

void PrintLine(absl::string_view line) { fprintf(stderr, "%s\n", std::string(line).c_str()); }

absl::Status RunRecovery(uint64_t seed, const Flags& flags, Totals& totals) {
  RecoverySimOptions options = RecoveryOptionsOf(seed, flags.faults);
  if (!flags.bug.empty()) options.bug = kRecoveryBugs.at(flags.bug);
  RecoverySim sim(seed, options, flags.log ? PrintLine : RecoverySim::Log());
  const absl::Status status = sim.Run();
  totals.generations += sim.generations();
  totals.batches += sim.scheduled_batches();
  totals.restarts += sim.crashes();
  totals.suspended += sim.suspended();
  totals.resumed += sim.resumed();
  return status;
}

absl::Status RunSchedules(uint64_t seed, const Flags& flags, Totals& totals) {
  const PlantedBug bug = flags.bug.empty() ? PlantedBug::kNone : kScheduleBugs.at(flags.bug);
  ScheduleSim sim(seed, RandomPrograms(seed), bug, ScheduleFaultsOf(seed, flags.faults),
                  flags.log ? PrintLine : ScheduleSim::Log());
  const absl::Status status = sim.Run();
  totals.generations += 1;
  totals.schedules += sim.schedules();
  totals.batches += sim.scheduled_batches() + sim.negotiated_batches();
  totals.restarts += sim.crashes();
  return status;
}

// Whether all is well.
bool RunOne(const std::string& simulator, uint64_t seed, const Flags& flags, Totals& totals) {
  ++totals.runs;
  const absl::Status status = simulator == "recovery" ? RunRecovery(seed, flags, totals)
                                                      : RunSchedules(seed, flags, totals);
  if (status.ok()) return true;
  ++totals.failed;
  if (!totals.first_failed.has_value()) totals.first_failed = seed;
  fprintf(stderr, "coordd-sim: %s, seed %llu: %s\n  %s\n", simulator.c_str(),
          static_cast<unsigned long long>(seed), std::string(status.message()).c_str(),
          Replay(simulator, seed, flags.faults, flags.bug).c_str());
  return false;
}

void Print(const Flags& flags, const Totals& totals, double seconds) {
  const unsigned long long last = flags.seed + flags.seeds - 1;
  if (flags.json) {
    printf(
        "{\"tool\":\"coordd-sim\",\"simulator\":\"%s\",\"seed\":%llu,\"seeds\":%llu,"
        "\"faults\":\"%s\",\"bug\":\"%s\",\"runs\":%lld,\"failed\":%lld,\"first_failed\":%s,"
        "\"generations\":%lld,\"schedules\":%lld,\"batches\":%lld,\"restarts\":%lld,"
        "\"suspended\":%lld,\"resumed\":%lld,\"seconds\":%.3f}\n",
        flags.simulator.c_str(), static_cast<unsigned long long>(flags.seed),
        static_cast<unsigned long long>(flags.seeds), ToString(flags.faults).c_str(),
        flags.bug.c_str(), static_cast<long long>(totals.runs),
        static_cast<long long>(totals.failed),
        totals.first_failed ? absl::StrCat(*totals.first_failed).c_str() : "null",
        static_cast<long long>(totals.generations), static_cast<long long>(totals.schedules),
        static_cast<long long>(totals.batches), static_cast<long long>(totals.restarts),
        static_cast<long long>(totals.suspended), static_cast<long long>(totals.resumed), seconds);
    return;
  }
  printf(
      "coordd-sim: seeds %llu to %llu, faults %s: %lld of %lld runs failed, in %.1f s\n"
      "  %lld generations, %lld starts of coordd anew, %lld generations taken up after a sleep,\n"
      "  %lld ranks came back to theirs, %lld schedules, %lld batches\n",
      static_cast<unsigned long long>(flags.seed), last, ToString(flags.faults).c_str(),
      static_cast<long long>(totals.failed), static_cast<long long>(totals.runs), seconds,
      static_cast<long long>(totals.generations), static_cast<long long>(totals.restarts),
      static_cast<long long>(totals.suspended), static_cast<long long>(totals.resumed),
      static_cast<long long>(totals.schedules), static_cast<long long>(totals.batches));
}

template <typename Bug>
std::string NamesOf(const std::map<std::string, Bug>& bugs) {
  std::string names;
  for (const auto& [name, bug] : bugs) absl::StrAppend(&names, names.empty() ? "" : ", ", name);
  return names;
}

// The status to end with, if there is nothing to run.
std::optional<int> Parse(int argc, char** argv, Flags& flags) {
  CLI::App app(kDescription, "coordd-sim");
  app.footer(kFooter);
  std::string faults = "all";
  std::string about_faults = "Of these, with commas between; or all, or none:";
  for (Fault fault : AllFaults())
    absl::StrAppend(&about_faults, "\n", Name(fault), ": ", About(fault));
  app.add_option("--seeds", flags.seeds, "How many, one after the other")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 40))
      ->capture_default_str();
  app.add_option("--seed", flags.seed, "The first one")->capture_default_str();
  app.add_option("--simulator", flags.simulator, "Which")
      ->check(CLI::IsMember({"recovery", "schedules", "both"}))
      ->capture_default_str();
  app.add_option("--faults", faults, about_faults)->capture_default_str();
  app.add_option("--bug", flags.bug,
                 absl::StrCat("A planted mistake. Of recovery: ", NamesOf(kRecoveryBugs),
                              ". Of schedules: ", NamesOf(kScheduleBugs)));
  app.add_flag("--keep-going", flags.keep_going, "Past the first seed that fails");
  app.add_flag("--json", flags.json, "The last line is one JSON object");
  app.add_flag("--log", flags.log, "What happens, a line each, on stderr");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    fputs(app.help().c_str(), stdout);
    return 0;
  } catch (const CLI::ParseError& error) {
    fprintf(stderr, "coordd-sim: %s\n(coordd-sim --help lists the flags)\n",
            UsageSentence(app, error).c_str());
    return kExitUsage;
  }
  const absl::StatusOr<FaultSet> parsed = ParseFaults(faults);
  absl::Status status = parsed.status();
  const bool of_recovery = kRecoveryBugs.contains(flags.bug);
  const bool of_schedules = kScheduleBugs.contains(flags.bug);
  if (status.ok() && !flags.bug.empty() && !of_recovery && !of_schedules)
    status = absl::InvalidArgumentError(absl::StrCat("there is no bug ", flags.bug));
  const char* const needed = of_recovery ? "recovery" : "schedules";
  if (status.ok() && !flags.bug.empty()) {
    if (flags.simulator == "both") flags.simulator = needed;
    if (flags.simulator != needed)
      status = absl::InvalidArgumentError(absl::StrCat("bug ", flags.bug, " is one of ", needed));
  }
  if (!status.ok()) {
    fprintf(stderr, "coordd-sim: %s\n", std::string(status.message()).c_str());
    return kExitUsage;
  }
  flags.faults = *parsed;
  return std::nullopt;
}

int Main(int argc, char** argv) {
  Flags flags;
  if (const std::optional<int> ends = Parse(argc, argv, flags)) return *ends;
  const auto start = std::chrono::steady_clock::now();
  Totals totals;
  bool go_on = true;
  for (uint64_t i = 0; go_on && i < flags.seeds; ++i) {
    for (const char* simulator : {"recovery", "schedules"}) {
      if (flags.simulator != "both" && flags.simulator != simulator) continue;
      const bool well = RunOne(simulator, flags.seed + i, flags, totals);
      go_on = go_on && (well || flags.keep_going);
    }
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  Print(flags, totals, took.count());
  return totals.failed > 0 ? kExitWrong : 0;
}

}  // namespace
}  // namespace coordd

int main(int argc, char** argv) { return coordd::Main(argc, argv); }
