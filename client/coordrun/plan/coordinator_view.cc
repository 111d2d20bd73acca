#include "client/coordrun/plan/coordinator_view.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "client/coordctl/state_view.h"
#include "client/coordrun/plan/first_failure.h"

namespace coordd {
namespace {

constexpr int kMaxSentences = 8;  // of departures, and of stalls: more than a screen helps nobody
constexpr absl::string_view kBecauseOfIt = "failed because of it";

// "rank 1 (host vm, pid 4711)", as errors name it, too.
std::string NameOf(const v1::Departure& departure) {
  const std::string text = DepartureText(departure);
  return text.substr(0, text.find(") ") + 1);
}

// The one whose departure explains this one; null: none.
const v1::Departure* CauseOf(const v1::JobState& job, int index) {
  for (int i = 0; i < index; ++i) {
    const v1::Departure& other = job.departures(i);
    if (absl::StrContains(job.departures(index).detail(), NameOf(other))) return &other;
  }
  return nullptr;
}

std::vector<std::string> DescribeDepartures(const v1::JobState& job) {
  std::vector<std::string> sentences;
  int left = kMaxSentences, followers = 0;
  for (int i = 0; i < job.departures_size(); ++i) {
    const v1::Departure& departure = job.departures(i);
    // Those who said goodbye, in the end because of the others, explain nothing by themselves.
    if (SaidGoodbye(departure)) continue;
    const v1::Departure* cause = CauseOf(job, i);
    if (cause == nullptr) {
      if (left-- > 0) sentences.push_back(DepartureText(departure));
      continue;
    }
    if (followers++ == 0 && SaidGoodbye(*cause)) sentences.push_back(DepartureText(*cause));
  }
  if (followers > 0) {
    sentences.push_back(absl::StrCat(
        followers, followers == 1 ? " other worker " : " other workers ", kBecauseOfIt));
  }
  return sentences;
}

// What a later sentence about the same thing has in common with this one; empty: nothing.
absl::string_view Subject(absl::string_view sentence) {
  if (absl::EndsWith(sentence, kBecauseOfIt)) return kBecauseOfIt;
  const size_t end = sentence.find(") ");
  const bool names_worker =
      absl::StartsWith(sentence, "rank ") || absl::StartsWith(sentence, "a worker (");
  return names_worker && end != absl::string_view::npos ? sentence.substr(0, end)
                                                        : absl::string_view();
}

// Whether one of these has been in it.
bool HasOneOf(const v1::JobState& job, const std::vector<std::string>& launches) {
  const auto ours = [&launches](const auto& one) {
    return !one.launch().empty() &&
           std::find(launches.begin(), launches.end(), one.launch()) != launches.end();
  };
  return std::any_of(job.workers().begin(), job.workers().end(), ours) ||
         std::any_of(job.departures().begin(), job.departures().end(), ours);
}

bool IsOurs(const v1::JobState& job, const std::vector<std::string>& launches) {
  const auto known = [](const std::string& launch) { return !launch.empty(); };
  return std::none_of(launches.begin(), launches.end(), known) || HasOneOf(job, launches);
}

// "allreduce.a" of "...: tensor allreduce.a: generation 1 ended: rank 0 (...) left"; empty: none.
std::string TensorIn(absl::string_view line) {
  constexpr absl::string_view kBefore = "tensor ", kBehind = ": generation ";
  const size_t begin = line.find(kBefore);
  const size_t end = line.find(kBehind);
  if (begin == absl::string_view::npos || end == absl::string_view::npos) return "";
  const size_t first = begin + kBefore.size();
  return first < end ? std::string(line.substr(first, end - first)) : "";
}

// The line in which one that failed says that this one has left; null: none does.
const std::string* ComplaintAbout(const v1::Departure& departure, const RunReport& report) {
  const std::string complaint = absl::StrCat(NameOf(departure), " left");
  for (const std::deque<std::string>& tail : report.tails) {
    for (const std::string& line : tail)
      if (absl::StrContains(line, complaint)) return &line;
  }
  return nullptr;
}

}  // namespace

void JoinGroups(const std::string& job, const std::vector<std::string>& launches,
                v1::ServerState* state) {
  std::vector<v1::JobState> of_run, others;
  bool has_groups = false;
  for (v1::JobState& found : *state->mutable_jobs()) {
    const bool is_group = absl::StartsWith(found.name(), absl::StrCat(job, "."));
    const bool is_ours = (is_group && HasOneOf(found, launches)) || found.name() == job;
    has_groups = has_groups || (is_group && is_ours);
    (is_ours ? of_run : others).push_back(std::move(found));
  }
  if (has_groups) {
    // What is in its phase for longest has ended first.
    std::stable_sort(of_run.begin(), of_run.end(), [](const auto& a, const auto& b) {
      const bool a_ended = a.phase() == v1::JOB_PHASE_ENDED,
                 b_ended = b.phase() == v1::JOB_PHASE_ENDED;
      if (a_ended != b_ended) return a_ended;
      return a.seconds_in_phase() > b.seconds_in_phase();
    });
    v1::JobState whole;
    int64_t batches = 0, bytes = 0;
    for (const v1::JobState& one : of_run) {
      whole.MergeFrom(one);  // of what there is one of the last one's, of what there are many all
      batches += one.batches_total();
      bytes += one.bytes_total();
    }
    whole.set_batches_total(batches);
    whole.set_bytes_total(bytes);
    whole.set_name(job);
    of_run = {std::move(whole)};
  }
  state->clear_jobs();
  for (std::vector<v1::JobState>* all : {&of_run, &others}) {
    for (v1::JobState& one : *all) *state->add_jobs() = std::move(one);
  }
}

std::vector<std::string> DescribeView(const v1::ServerState& state, const std::string& job) {
  std::vector<std::string> sentences;
  for (const v1::JobState& found : state.jobs()) {
    if (found.name() != job) continue;
    if (!found.state_lost().empty()) sentences.push_back(found.state_lost());
    for (std::string& sentence : DescribeDepartures(found))
      sentences.push_back(std::move(sentence));
    int left = kMaxSentences;
    for (const v1::StalledTensor& stall : found.stalled()) {
      if (left-- > 0) sentences.push_back(StallText(stall));
    }
  }
  return sentences;
}

void AddView(const v1::ServerState& state, const std::string& job,
             const std::vector<std::string>& launches, RunReport* report) {
  for (const v1::JobState& found : state.jobs()) {
    if (found.name() != job) continue;
    if (!IsOurs(found, launches)) return;
    report->batches = found.batches_total();
    report->bytes = found.bytes_total();
  }
  std::vector<std::string>& view = report->coordinator_view;
  for (std::string& sentence : DescribeView(state, job)) {
    const absl::string_view subject = Subject(sentence);
    const auto known = std::find_if(view.begin(), view.end(), [&](const std::string& other) {
      return other == sentence || (!subject.empty() && Subject(other) == subject);
    });
    if (known == view.end()) {
      view.push_back(std::move(sentence));
    } else {
      *known = std::move(sentence);
    }
  }
}

std::string EarlyGoodbye(const v1::ServerState& state, const RunOptions& options,
                         const RunState& run, const std::vector<std::string>& launches,
                         const RunReport& report) {
  if (options.min_np > 0 || !run.first_failure()) return "";
  for (const v1::JobState& job : state.jobs()) {
    if (job.name() != report.job) continue;
    for (const v1::Departure& departure : job.departures()) {
      if (!SaidGoodbye(departure) || departure.launch().empty()) continue;
      const auto found = std::find(launches.begin(), launches.end(), departure.launch());
      if (found == launches.end()) continue;
      const auto& end = run.workers()[static_cast<size_t>(found - launches.begin())].end;
      const std::string* complaint = ComplaintAbout(departure, report);
      if (!end || !end->ok() || complaint == nullptr) continue;
      const std::string tensor = TensorIn(*complaint);
      return absl::StrCat("rank ", departure.rank(), " (pid ", departure.pid(),
                          ") ended with status 0 while others ",
                          tensor.empty() ? "went on" : "waited for it in ", tensor, ", and ");
    }
  }
  return "";
}

}  // namespace coordd
