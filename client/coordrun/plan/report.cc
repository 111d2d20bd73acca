#include "client/coordrun/plan/report.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "client/coordctl/state_view.h"
#include "client/coordrun/process/last_words.h"
#include "common/base/counted.h"
#include "common/base/utf8.h"
#include "common/protocol/join_refusal.h"

namespace coordd {
namespace {

constexpr int kDeparturesShown = 64;                 // by coordd, of each job
constexpr size_t kRefusalBytes = 400;                // of what coordd said: some lines of a screen
constexpr char kLastWords[] = "; last on stderr: ";  // as coordd has it

std::string Seconds(absl::Duration duration) {
  return absl::StrFormat("%.1f s", absl::ToDoubleSeconds(duration));
}

// "rank 2 (host node3, pid 4711)"; what is not known is left out.
std::string RankText(const RunOptions& options, const RunReport& report, int32_t worker) {
  const auto index = static_cast<size_t>(worker);
  const std::string host = index < report.hosts.size() ? report.hosts[index] : "";
  const pid_t pid = report.pids[index];
  std::string where = host.empty() ? "" : absl::StrCat("host ", host);
  if (pid != 0) absl::StrAppend(&where, where.empty() ? "" : ", ", "pid ", pid);
  return absl::StrCat("rank ", options.first_rank + worker,
                      where.empty() ? "" : absl::StrCat(" (", where, ")"));
}

std::string WhyRefused(const RunReport& report, int32_t worker) {
  const auto index = static_cast<size_t>(worker);
  return index < report.tails.size() ? RefusalOf(report.tails[index]) : "";
}

// ", 1.2 GiB reduced per rank in 345 batches", or that nobody was there to reduce anything.
std::string ReducedText(const RunState& state, const RunReport& report) {
  if (report.nobody_joined) {
    // Of one that has failed init() may well have been called, and coordd have refused it.
    const auto first = state.first_failure();
    const bool has_said = first && !report.tails[static_cast<size_t>(*first)].empty();
    const bool is_refused = first && !WhyRefused(report, *first).empty();
    return absl::StrCat(
        report.pids.size() == 1 ? ", which has not" : ", none of which has", " joined the job",
        is_refused ? ""
        : has_said ? " (init() was refused or not reached: the last lines below tell why)"
                   : " (no call of init())");
  }
  if (report.batches == 0) return "";
  return absl::StrCat(", ", BytesText(static_cast<double>(report.bytes)), " reduced per rank in ",
                      report.batches, report.batches == 1 ? " batch" : " batches");
}

// "coordd refused it: the job is full; "; empty: it did not, as far as is known.
std::string RefusedText(const RunReport& report, int32_t worker) {
  const std::string why = WhyRefused(report, worker);
  return why.empty() ? "" : absl::StrCat("coordd refused it: ", why, "; ");
}

// "ranks 0, 1, 3 exited with status 1": equal ends together, in order of their first rank.
std::vector<std::string> EndsOfOthers(const RunOptions& options, const RunState& state,
                                      const RunReport& report) {
  std::vector<std::pair<std::string, std::string>> groups;  // end, ranks
  const std::string told =
      state.first_failure() ? WhyRefused(report, *state.first_failure()) : std::string();
  for (int32_t r = 0; r < static_cast<int32_t>(state.workers().size()); ++r) {
    const RunState::Worker& worker = state.workers()[static_cast<size_t>(r)];
    if (state.first_failure() == r || worker.away) continue;
    std::string end = worker.end ? worker.end->ToString() : "was not collected";
    if (const std::string refusal = WhyRefused(report, r); !refusal.empty())
      absl::StrAppend(&end, ", refused by coordd",
                      refusal == told ? " for the same reason" : absl::StrCat(": ", refusal));
    const std::string rank = absl::StrCat(options.first_rank + r);
    bool found = false;
    for (auto& [text, ranks] : groups) {
      if (text != end) continue;
      absl::StrAppend(&ranks, ", ", rank);
      found = true;
    }
    if (!found) groups.emplace_back(end, rank);
  }
  std::vector<std::string> lines;
  for (const auto& [end, ranks] : groups) {
    const bool several = ranks.find(',') != std::string::npos;
    std::string text = several && end.rfind("was ", 0) == 0 ? "were " + end.substr(4) : end;
    lines.push_back(absl::StrCat(several ? "ranks " : "rank ", ranks, " ", text));
  }
  return lines;
}

// Of a sentence of coordd's, what the summary does not say anyway: the last words of the worker
// that failed first stand below, and what its program has said of the failure above.
std::string Untold(const std::string& sentence, const RunState& state, const RunReport& report) {
  const auto first = state.first_failure();
  if (!first) return sentence;
  const auto index = static_cast<size_t>(*first);
  const std::string pid = absl::StrCat("pid ", report.pids[index], ") ");
  if (report.pids[index] == 0 || !absl::StrContains(sentence, pid)) return sentence;
  const bool is_told = !state.failure_says().empty() && state.lost().empty() &&
                       absl::StrContains(sentence, state.failure_says());
  if (is_told) return "";
  return report.tails[index].empty() ? sentence : sentence.substr(0, sentence.find(kLastWords));
}

// Of those that were lost and the one by which the run failed, the first that did not end because
// of another one. REQUIRES: the run has failed.
int32_t WhoseWords(const RunState& state, const RunReport& report) {
  for (const int32_t worker : state.lost()) {
    const std::deque<std::string>& tail = report.tails[static_cast<size_t>(worker)];
    if (!tail.empty() && !EndedByALoss(tail)) return worker;
  }
  return *state.first_failure();
}

std::string RepairedText(const RunState& state) {
  if (state.repaired() == 0) return "";
  if (state.repaired() == 1) return "; 1 was lost and started again";
  return absl::StrCat("; ", state.repaired(), " times one was lost and started again");
}

// What the numbers in what coordrun says are, where coordd's may be others; empty: they are the
// same.
std::string NumbersText(const RunOptions& options, const RunState& state, const RunReport& report) {
  const bool has_changed =
      !state.lost().empty() || state.repaired() > 0 || state.drained_workers() > 0;
  const bool elastic = options.min_np > 0 || !options.discovery_script.empty();
  if (!elastic || !has_changed || report.nobody_joined) return "";
  return absl::StrCat(options.prefix ? "[n] and rank n here are" : "rank n here is",
                      " the number with which coordrun started a worker (COORDD_RANK); since "
                      "members have changed, its rank in the job may be another");
}

std::string TailText(const RunOptions& options, const RunReport& report, int32_t worker) {
  const std::deque<std::string>& tail = report.tails[static_cast<size_t>(worker)];
  std::string out;
  if (!tail.empty()) {
    absl::StrAppend(&out, "\ncoordrun: the last lines of rank ", options.first_rank + worker,
                    " on stderr:");
  }
  for (const std::string& line : tail) absl::StrAppend(&out, "\n  | ", WithoutEscapes(line));
  return out;
}

// Whether Keras 3 has refused an argument that Keras 2 has, as its classes' names tell:
// TensorFlowTrainer.fit(), Trainer.compile().
bool IsKeras2Argument(const std::string& line) {
  return absl::StrContains(line, "TypeError: ") &&
         (absl::StrContains(line, "Trainer.compile() got an unexpected keyword argument") ||
          absl::StrContains(line, "Trainer.fit() got an unexpected keyword argument"));
}

// What the worker has said before its end, if that says more: "it exits with status 3" does not.
std::string WordsBefore(const RunState& state, const RunState::Worker& worker) {
  const std::string& says = state.failure_says();
  const bool is_all =
      worker.end && says == absl::StrReplaceAll(absl::StrCat("it ", worker.end->ToString()),
                                                {{"exited", "exits"}});
  return says.empty() || is_all ? "" : absl::StrCat(says, "; ");
}

}  // namespace

std::string EndingText(const RunOptions& options, const RunState& state, const RunReport& report) {
  if (const auto first = state.first_failure(); first && !state.blame_reason().empty()) {
    return absl::StrCat(RankText(options, report, *first), " ", state.blame_reason());
  }
  if (const auto first = state.first_failure()) {
    const RunState::Worker& worker = state.workers()[static_cast<size_t>(*first)];
    const std::string end =
        worker.end ? absl::StrCat(worker.end->ToString(), " after ", Seconds(worker.ran))
                   : "has not ended yet";
    if (!report.early_goodbye.empty())
      return absl::StrCat(report.early_goodbye, RankText(options, report, *first),
                          " failed for it: it ", end);
    if (state.lost().empty())
      return absl::StrCat(
          RankText(options, report, *first), " failed first: ",
          state.failure_says().empty() ? RefusedText(report, *first) : WordsBefore(state, worker),
          "it ", end);
    return absl::StrCat(
        RankText(options, report, *first), " ", end,
        options.discovery_script.empty()
            ? absl::StrCat(" as well, and fewer than --min-np ", options.min_np, " are left")
            : " as well, and nobody is left");
  }
  if (!state.job_end().empty()) {
    return absl::StrCat(
        state.lost().empty()
            ? "a worker has gone"
            : absl::StrCat(RankText(options, report, state.lost().back()), " was lost"),
        ", and no generation of the job follows: ", state.job_end());
  }
  if (state.timed_out()) {
    return absl::StrCat("the run was not done after --timeout ",
                        absl::ToDoubleSeconds(options.timeout), " s");
  }
  if (state.has_drained())
    return absl::StrCat("this pod was asked to end, and its ",
                        options.np == 1 ? "worker has" : "workers have", " left");
  if (state.interrupted()) {
    return absl::StrCat("the run was ended by ", SignalName(state.exit_status() - 128));
  }
  if (state.coordinator_end()) {
    return absl::StrCat("coordd ", state.coordinator_end()->ToString(), " during the run");
  }
  if (state.deserted() && state.drained_workers() > 0) {
    return absl::StrCat("no worker is left: ", state.drained_workers(),
                        state.drained_workers() == 1 ? " was" : " were", " asked to leave");
  }
  if (state.deserted()) {
    return absl::StrCat(
        "no worker is left: ", state.workers().size() == 1 ? "its host is" : "their hosts are",
        " gone, and no others came within ", absl::FormatDuration(options.elastic_timeout),
        " (--elastic-timeout)");
  }
  if (state.lost().empty())
    return absl::StrCat("all workers exited with status 0", RepairedText(state));
  const bool is_other_alone = state.workers().size() == state.lost().size() + 1;
  return absl::StrCat(
      state.lost().size(), state.lost().size() == 1 ? " was" : " were",
      is_other_alone ? " lost, the other one exited" : " lost, the others exited with status 0",
      RepairedText(state));
}

std::string LossText(const RunOptions& options, const RunState& state, const RunReport& report,
                     int32_t worker, const std::deque<std::string>& tail) {
  const RunState::Worker& lost = state.workers()[static_cast<size_t>(worker)];
  const std::vector<std::string> words = LastWords(tail);
  const std::string refusal = RefusalOf(tail);
  return absl::StrCat(
      RankText(options, report, worker), " ", lost.end->ToString(), " after ", Seconds(lost.ran),
      !refusal.empty() ? absl::StrCat(" (coordd refused it: ", refusal, ")")
      : words.empty()  ? ""
                       : absl::StrCat(" (last on stderr: ", words.back(), ")"),
      "; ", state.alive(), state.alive() == 1 ? " worker goes on" : " workers go on");
}

std::string DrainText(const RunOptions& options, const RunState& state, const RunReport& report,
                      int32_t worker) {
  const RunState::Worker& gone = state.workers()[static_cast<size_t>(worker)];
  return absl::StrCat(RankText(options, report, worker), " was asked to leave and ",
                      gone.end->ToString(), " after ", Seconds(gone.ran), "; ", state.alive(),
                      state.alive() == 1 ? " worker goes on" : " workers go on");
}

std::string BeginningText(const RunOptions& options, const RunPlan& plan) {
  const bool grows = !options.discovery_script.empty();
  // Of a job with workers of other coordruns, only coordd knows how many there are.
  const bool is_whole_job = options.size <= options.np && !options.pods.take_part();
  if (options.min_np == 0 || !is_whole_job || (!grows && options.min_np >= plan.np)) return "";
  const std::string begins =
      absl::StrCat("starts ", Counted(plan.np, "worker"),
                   grows ? ", for which there are slots" : "", "; the job begins with ",
                   options.min_np >= plan.np
                       ? "all of them"
                       : absl::StrCat("all that come in time, ", options.min_np, " at least"),
                   " (--min-np)");
  if (!grows) return absl::StrCat(begins, ", and others join at a later commit");
  return absl::StrCat(begins, ", and workers on slots that come later join at a commit",
                      options.max_np > 0 ? absl::StrCat(", up to --max-np ", options.max_np) : "");
}

std::string WaitingText(const RunOptions& options, const RunState& state) {
  if (state.awaits_hosts()) {
    return absl::StrCat("nobody is left; hosts are waited for, ",
                        absl::FormatDuration(options.elastic_timeout), " (--elastic-timeout)");
  }
  // Of a job with workers of other coordruns, only coordd knows how many there are.
  const bool is_whole_job = options.first_rank == 0 && options.size <= options.np;
  const int32_t missing = options.min_np - state.alive();
  if (!is_whole_job || state.alive() == 0 || missing <= 0 || state.ending() ||
      state.some_are_through())
    return "";
  return absl::StrCat(state.alive(), state.alive() == 1 ? " worker is" : " workers are",
                      " left, --min-np ", options.min_np, ": waiting up to ",
                      absl::ToDoubleSeconds(options.elastic_timeout), " s for ",
                      missing == 1 ? "another" : absl::StrCat(missing, " others"));
}

bool WasAskedToLeave(const v1::ServerState& state, const std::string& job,
                     const std::string& launch) {
  for (const v1::JobState& found : state.jobs()) {
    if (found.name() != job) continue;
    for (const v1::Departure& departure : found.departures())
      if (departure.launch() == launch) return departure.drained();
    for (const v1::WorkerState& worker : found.workers())
      if (worker.launch() == launch) return worker.draining();
  }
  return false;
}

std::string NoneFollows(const v1::ServerState& state, const std::string& job,
                        const std::vector<std::string>& launches) {
  const auto ours = [&launches](const auto& one) {
    return !one.launch().empty() && absl::c_linear_search(launches, one.launch());
  };
  for (const v1::JobState& found : state.jobs()) {
    if (found.name() != job) continue;
    // Of more departures coordd shows the last ones, which may all be another coordrun's.
    const bool is_cut = found.departures_size() >= kDeparturesShown;
    if (is_cut || absl::c_any_of(found.workers(), ours) || absl::c_any_of(found.departures(), ours))
      return found.none_follows();
  }
  return "";
}

bool NobodyHasCome(const v1::ServerState& state, const RunReport& report) {
  for (const v1::JobState& job : state.jobs()) {
    if (job.name() != report.job) continue;
    return job.workers().empty() && job.departures().empty();
  }
  return true;
}

std::optional<EarlyExit> FindEarlyExit(const v1::ServerState& state, const RunState& run,
                                       const RunReport& report) {
  for (const v1::JobState& job : state.jobs()) {
    // Without anybody in it, the workers may be no members at all.
    if (job.name() != report.job || job.phase() != v1::JOB_PHASE_GATHERING || job.joined() == 0) {
      continue;
    }
    std::set<int32_t> seen;
    for (const v1::WorkerState& worker : job.workers()) seen.insert(worker.pid());
    for (const v1::Departure& departure : job.departures()) seen.insert(departure.pid());
    for (size_t w = 0; w < run.workers().size(); ++w) {
      const auto& end = run.workers()[w].end;
      if (!end || !end->ok() || seen.count(report.pids[w]) > 0) continue;
      return EarlyExit{
          static_cast<int32_t>(w),
          absl::StrCat("exited with status 0 before it joined the job, for which ", job.joined(),
                       job.joined() == 1 ? " other waits" : " others wait")};
    }
  }
  return std::nullopt;
}

bool OnlyLatecomersAreLeft(const v1::ServerState& state, const RunState& run,
                           const RunReport& report) {
  if (!run.only_restarted_are_alive()) return false;
  std::set<int32_t> waiting;
  for (const v1::JobState& job : state.jobs()) {
    if (job.name() != report.job || job.phase() != v1::JOB_PHASE_GATHERING) continue;
    for (const v1::WorkerState& worker : job.workers()) waiting.insert(worker.pid());
  }
  for (size_t w = 0; w < run.workers().size(); ++w) {
    if (!run.workers()[w].end && waiting.count(report.pids[w]) == 0) return false;
  }
  return true;
}

void ExplainLostExits(const v1::ServerState& state, const RunOptions& options, const RunState& run,
                      RunReport* report) {
  for (const v1::JobState& job : state.jobs()) {
    if (job.name() != report->job) continue;
    for (const v1::Departure& departure : job.departures()) {
      if (departure.cause() != v1::DEPARTURE_CAUSE_CONNECTION_LOST) continue;
      for (size_t w = 0; w < run.workers().size(); ++w) {
        const auto& end = run.workers()[w].end;
        if (!end || !end->ok() || report->pids[w] != departure.pid()) continue;
        report->coordinator_view.push_back(absl::StrCat(
            "that was ", RankText(options, *report, static_cast<int32_t>(w)),
            ", which exited with status 0 without a goodbye: its program ends before it shuts the "
            "worker down, while others go on"));
      }
    }
  }
}

bool EndedByALoss(const std::deque<std::string>& tail) {
  return std::any_of(tail.begin(), tail.end(), [](const std::string& line) {
    const size_t begin = line.find("generation ");
    return begin != std::string::npos && line.find(" ended: ", begin) != std::string::npos;
  });
}

std::string RefusalOf(const std::deque<std::string>& tail) {
  for (auto line = tail.rbegin(); line != tail.rend(); ++line)
    if (const std::string why = RefusalIn(WithoutEscapes(*line)); !why.empty())
      return ShortenedText(why, kRefusalBytes);
  return "";
}

std::string HintFrom(const RunOptions& options, const std::deque<std::string>& tail) {
  const bool lacks_horovod = std::any_of(tail.begin(), tail.end(), [](const std::string& line) {
    return absl::StrContains(line, "ModuleNotFoundError: No module named 'horovod");
  });
  const bool elastic = options.min_np > 0 && options.on_failure == "raise";
  if (elastic && EndedByALoss(tail)) {
    return "with --min-np the others go on only if the program is made for it: with "
           "coordd.torch.elastic in Python, coordd_worker_await_generation in C, or --on-failure "
           "continue";
  }
  if (options.horovod && absl::c_any_of(tail, IsKeras2Argument)) {
    return "Keras 3 does not know this argument of Keras 2's; scripts for Keras 2 run unchanged "
           "with TF_USE_LEGACY_KERAS=1 (pip install tf_keras)";
  }
  if (!lacks_horovod || options.horovod) return "";
  return absl::StrCat(
      "a script that imports horovod finds coordd in its place with --horovod: "
      "coordrun --horovod -np ",
      options.np, " -- python SCRIPT");
}

std::string SummaryText(const RunOptions& options, const RunState& state, const RunReport& report) {
  const bool good = state.exit_status() == 0;
  std::string out = absl::StrCat(
      "coordrun: job ", report.job, ", ", options.np, options.np == 1 ? " worker, " : " workers, ",
      Seconds(report.wall), ReducedText(state, report), ": ", EndingText(options, state, report));
  if (const std::string numbers = NumbersText(options, state, report); !numbers.empty())
    absl::StrAppend(&out, "\ncoordrun: ", numbers);
  if (good && state.lost().empty()) return out;
  for (const std::string& line : EndsOfOthers(options, state, report)) {
    absl::StrAppend(&out, "\ncoordrun: ", line);
  }
  for (const std::string& sentence : report.coordinator_view) {
    if (const std::string text = Untold(sentence, state, report); !text.empty())
      absl::StrAppend(&out, "\ncoordrun: coordd saw: ", text);
  }
  if (const auto first = state.first_failure()) {
    absl::StrAppend(&out, TailText(options, report, WhoseWords(state, report)));
    std::set<std::string> hints = {HintFrom(options, report.tails[static_cast<size_t>(*first)])};
    for (const int32_t worker : state.lost())
      hints.insert(HintFrom(options, report.tails[static_cast<size_t>(worker)]));
    for (const std::string& hint : hints)
      if (!hint.empty()) absl::StrAppend(&out, "\ncoordrun: ", hint);
  }
  return out;
}

std::string SummaryJson(const RunOptions& options, const RunState& state, const RunReport& report) {
  using Json = nlohmann::ordered_json;
  Json ranks = Json::array();
  for (int32_t r = 0; r < static_cast<int32_t>(state.workers().size()); ++r) {
    const RunState::Worker& worker = state.workers()[static_cast<size_t>(r)];
    const auto index = static_cast<size_t>(r);
    Json row = {{"rank", options.first_rank + r}, {"pid", report.pids[index]}};
    row["host"] = index < report.hosts.size() ? report.hosts[index] : "";
    row["exit_code"] = worker.end && worker.end->signal == 0 ? Json(worker.end->code) : Json();
    row["signal"] =
        worker.end && worker.end->signal != 0 ? Json(SignalName(worker.end->signal)) : Json();
    row["seconds"] = absl::ToDoubleSeconds(worker.ran);
    ranks.push_back(std::move(row));
  }
  Json json = {{"job", report.job},
               {"workers", options.np},
               {"exit_status", state.exit_status()},
               {"seconds", absl::ToDoubleSeconds(report.wall)}};
  json["lost"] = Json::array();
  for (int32_t worker : state.lost()) json["lost"].push_back(options.first_rank + worker);
  json["drained"] = Json::array();
  for (size_t r = 0; r < state.workers().size(); ++r)
    if (state.workers()[r].drained)
      json["drained"].push_back(options.first_rank + static_cast<int32_t>(r));
  json["first_failure"] =
      state.first_failure() ? Json(options.first_rank + *state.first_failure()) : Json();
  json["reason"] = EndingText(options, state, report);
  json["batches"] = report.batches;
  json["bytes_reduced_per_rank"] = report.bytes;
  json["coordinator_view"] = report.coordinator_view;
  json["ranks"] = std::move(ranks);
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace coordd
