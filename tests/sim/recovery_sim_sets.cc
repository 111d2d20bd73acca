// Process sets in the recovery simulator: what the programs ask for, and what they must find in
// the next generation.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/protocol/process_set_parts.h"
#include "tests/server/support/builders.h"
#include "tests/sim/recovery_sim.h"
#include "worker/execute/worker_errors.h"
#include "worker/protocol/join_message.h"

namespace coordd {
namespace {

constexpr int64_t kAddsNamed = 3, kEndsNamed = 4;  // tokens of requests

}  // namespace

// Of one that waits for its first generation.
absl::Status RecoverySim::Begin(int32_t w, const v1::CoordinatorMessage& message) {
  WorkerModel& worker = workers_[static_cast<size_t>(w)];
  if (message.has_membership()) {
    worker.joined = message;
    worker.joined_sets.Clear();
    if (message.membership().process_sets_follow()) return absl::OkStatus();
  } else if (message.has_process_sets() && worker.joined.has_value()) {
    COORDD_RETURN_IF_ERROR(AddPart(message.process_sets(), worker.joined_sets));
    worker.joined->set_sequence(message.sequence());
    if (message.process_sets().more()) return absl::OkStatus();
  } else {
    return absl::OkStatus();
  }
  COORDD_ASSIGN_OR_RETURN(MemberPlace place, ParseMembership(*worker.joined, worker.joined_sets));
  place.state.on_failure = OnFailure::kContinue;
  place.state.join = JoinFor(w);
  worker.generation = message.generation();
  worker.state = std::make_unique<WorkerState>(place.state, coordd_.now());
  return OnFound(w, place.state.size, worker.state->process_sets());
}

std::set<int32_t> RecoverySim::WorkersOf(int64_t generation,
                                         const std::vector<int32_t>& ranks) const {
  std::set<int32_t> workers;
  for (const auto& [w, rank] : members_.at(generation))
    if (std::find(ranks.begin(), ranks.end(), rank) != ranks.end()) workers.insert(w);
  return workers;
}

// All find the same. Each program then submits once in each set that it is in, asks for a set that
// leaves out one rank, and, in every other generation, for the end of the first set that it has
// found: all do the same. All but one rank then make a set alone, and mostly end it again.
absl::Status RecoverySim::OnFound(int32_t w, int32_t size,
                                  const std::vector<DefineProcessSet>& sets) {
  WorkerModel& worker = workers_[static_cast<size_t>(w)];
  std::map<int32_t, std::vector<int32_t>> ranks;
  std::map<int32_t, std::set<int32_t>> found;
  worker.to_ask.clear();
  worker.to_submit_in_sets.clear();
  worker.asks = false;
  for (const DefineProcessSet& set : sets) {
    const int32_t number = ToInt(set.process_set);
    ranks[number] = set.ranks;
    found[number] = WorkersOf(worker.generation, set.ranks);
    if (set.member != found[number].contains(w))
      return Wrong("worker ", w, " is wrong about itself in process set ", number);
    if (set.member) worker.to_submit_in_sets.emplace_back(number, "found");
  }
  found_sets_ += static_cast<int64_t>(sets.size());
  const auto [first, is_first] = found_.try_emplace(worker.generation, ranks);
  if (first->second != ranks)
    return Wrong("worker ", w, " finds other process sets than another one did");
  COORDD_RETURN_IF_ERROR(CheckFound(w, found));
  worker.sets = std::move(ranks);
  worker.sets_of = worker.generation;
  const absl::Time deadline = coordd_.now() + absl::Minutes(10);
  std::vector<int32_t> but_one;
  for (int32_t rank = 0; rank < size; ++rank)
    if (rank != worker.generation % size) but_one.push_back(rank);
  if (size > 1) worker.to_ask.push_back({1, ProcessSetId{0}, std::move(but_one), deadline});
  if (worker.generation % 2 == 0 && !sets.empty())
    worker.to_ask.push_back({2, sets.front().process_set, {}, deadline});
  std::vector<int32_t> alone;
  bool is_one = false;
  for (int32_t rank = 0; rank < size; ++rank) {
    if (rank == (worker.generation + 1) % size) continue;
    alone.push_back(rank);
    is_one = is_one || members_.at(worker.generation).at(w) == rank;
  }
  if (is_one)
    worker.to_ask.push_back({kAddsNamed, ProcessSetId{0}, std::move(alone), deadline, {}, "named"});
  return absl::OkStatus();
}

// What this worker has known is there, with exactly those of its workers who are members now,
// unless somebody has heard of its end. It may find more, which others have known.
absl::Status RecoverySim::CheckFound(int32_t w,
                                     const std::map<int32_t, std::set<int32_t>>& found) const {
  const WorkerModel& worker = workers_[static_cast<size_t>(w)];
  for (const auto& [number, ranks] : worker.sets) {
    // Who is told of its generation late has been in it all the same.
    const std::set<int32_t> workers = WorkersOf(worker.sets_of, ranks);
    std::set<int32_t> left;
    for (const auto& [member, rank] : members_.at(worker.generation))
      if (workers.contains(member)) left.insert(member);
    const auto now = found.find(number);
    if (now == found.end() && (left.empty() || ended_sets_.contains(number))) continue;
    if (now == found.end()) return Wrong("worker ", w, " does not find process set ", number);
    if (now->second != left)
      return Wrong("worker ", w, " finds other workers in process set ", number);
  }
  for (int32_t number : worker.ended_sets)
    if (found.contains(number)) return Wrong("process set ", number, " has come back");
  return absl::OkStatus();
}

void RecoverySim::NoteChange(const v1::CoordinatorMessage& message) {
  const v1::ProcessSetChange& change = message.process_set_change();
  const std::pair<int64_t, int32_t> key{message.generation(), change.process_set()};
  if (!change.ranks().empty()) {
    // The number of a set of which nobody has heard may be that of another one later.
    named_sets_.erase(key);
    if (!change.name().empty()) named_sets_[key] = {change.ranks().begin(), change.ranks().end()};
  }
  if (!change.name().empty()) return;
  if (change.code() == 0 && change.ranks().empty()) ended_sets_.insert(change.process_set());
}

void RecoverySim::OnDefined(int32_t w, const DefineProcessSet& set) {
  WorkerModel& worker = workers_[static_cast<size_t>(w)];
  const int32_t number = ToInt(set.process_set);
  if (named_sets_.contains({worker.generation, number})) {
    named_after_resume_ += worker.has_resumed ? 1 : 0;
  } else {
    worker.sets[number] = set.ranks;
  }
  if (set.member) worker.to_submit_in_sets.emplace_back(number, "added");
}

const std::vector<int32_t>& RecoverySim::RanksOf(const WorkerModel& worker, int32_t set) const {
  const auto named = named_sets_.find({worker.generation, set});
  return named == named_sets_.end() ? worker.sets.at(set) : named->second;
}

void RecoverySim::OnEnded(int32_t w, const EndProcessSet& set) {
  WorkerModel& worker = workers_[static_cast<size_t>(w)];
  const int32_t number = ToInt(set.process_set);
  std::erase_if(worker.to_submit_in_sets,
                [number](const auto& one) { return one.first == number; });
  if (named_sets_.contains({worker.generation, number})) {
    ++ended_named_sets_;
    return;
  }
  worker.sets.erase(number);
  worker.ended_sets.insert(number);
}

absl::Status RecoverySim::DoSetWork(int32_t w) {
  WorkerModel& worker = workers_[static_cast<size_t>(w)];
  if (worker.to_submit_in_sets.empty()) {
    ProcessSetAsked asked = std::move(worker.to_ask.front());
    worker.to_ask.erase(worker.to_ask.begin());
    worker.asks = true;
    return Turn(w, std::move(asked));
  }
  const auto [set, name] = worker.to_submit_in_sets.back();
  worker.to_submit_in_sets.pop_back();
  // Its results are those of one generation: the instance is that and the set.
  return Submit(w, {name, worker.generation * 1000 + set, set});
}

TensorSpec RecoverySim::SpecOf(const Tensor& tensor) {
  TensorSpec spec = Gradient(tensor.name, {4});
  spec.process_set = ProcessSetId{tensor.set};
  return spec;
}

// Only what is in a set fails, with its generation or with the set; or a worker is gone.
absl::Status RecoverySim::OnFailed(int32_t w, const FailTensor& fail) {
  WorkerModel& worker = workers_[static_cast<size_t>(w)];
  const auto open = worker.open.extract(fail.id);
  if (worker.fails) return absl::OkStatus();
  const bool passes =
      IsGenerationChanged(fail.status) || absl::IsFailedPrecondition(fail.status) || worker.leaves;
  if (!open.empty() && open.mapped().set != 0 && passes) return absl::OkStatus();
  std::string text = absl::StrCat("worker ", w, ": ", fail.status.ToString());
  if (!MayBeGone(w)) return Wrong(text);
  worker.apart = std::move(text);
  worker.apart_from = worker.generation + 1;
  return absl::OkStatus();
}

absl::Status RecoverySim::OnAnswered(int32_t w, const ProcessSetAnswer& answer) {
  WorkerModel& worker = workers_[static_cast<size_t>(w)];
  worker.asks = false;
  if (answer.token == kAddsNamed && answer.status.ok() && worker.generation % 4 != 3)
    worker.to_ask.push_back(
        {kEndsNamed, answer.process_set, {}, coordd_.now() + absl::Minutes(10)});
  // ABORTED: others were refused by a coordd that is gone.
  const bool passes = answer.status.ok() || absl::IsAborted(answer.status) ||
                      absl::IsAlreadyExists(answer.status) ||
                      absl::IsFailedPrecondition(answer.status) ||
                      workers_[static_cast<size_t>(w)].leaves;
  if (passes) return absl::OkStatus();
  return Wrong("worker ", w, " has asked for a process set: ", answer.status.ToString());
}

}  // namespace coordd
