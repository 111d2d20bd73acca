// What the programs of the recovery simulator compute, and what they do when workers come while the
// job runs: they commit after each step, and the commit's allreduce says whether the members are to
// change; then all, newcomers among them, take the state of the first rank that has had it.
#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "tests/server/support/builders.h"
#include "tests/sim/recovery_sim.h"

namespace coordd {
namespace {

// There are several tensors of these names, which need not be of the same generation on all ranks.
constexpr int64_t kAnyInstance = -1;

constexpr absl::Duration kComputes = absl::Milliseconds(300);

// The same everywhere and on every machine, unlike absl::Hash.
uint64_t Fingerprint(absl::string_view text) {
  uint64_t print = 14695981039346656037u;
  for (char c : text) print = (print ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return print;
}

}  // namespace

bool RecoverySim::CanGoOn(const WorkerModel& worker) const {
  if (coordd_.now() < worker.computes_until) return false;
  switch (worker.phase) {
    case Phase::kTrain:
      return worker.trained.step < options_.steps;
    case Phase::kChange:
      return worker.generation > worker.agreed_in;
    case Phase::kDone:
      return false;
    default:
      return true;
  }
}

absl::Status RecoverySim::GoOn(int32_t w) {
  WorkerModel& worker = workers_[static_cast<size_t>(w)];
  const Trained& trained = worker.trained;
  const std::string packed = absl::StrCat(trained.step, "/", trained.commits, "/", trained.digest);
  switch (worker.phase) {
    case Phase::kTrain:
      worker.contributes = packed;
      ++worker.trained.step;
      for (int32_t t = 0; t < options_.tensors; ++t) worker.to_submit.push_back(t);
      if (are_elastic()) worker.phase = Phase::kCommit;
      return SubmitTensorOfStep(w);
    case Phase::kCommit:
      worker.contributes = packed;
      return Commit(w);
    case Phase::kDecide:
      return Decide(w);
    case Phase::kChange:
      worker.phase = Phase::kOwners;
      if (options_.bug != RecoveryBug::kSyncSkipped || w != 0) return absl::OkStatus();
      worker.phase = trained.step < options_.steps ? Phase::kTrain : Phase::kCommit;
      return absl::OkStatus();
    case Phase::kOwners:
      worker.phase = Phase::kState;
      return Submit(w, {"owners", kAnyInstance, 0, worker.shared ? "shared" : "own"});
    case Phase::kState:
      worker.phase = Phase::kTake;
      worker.given.reset();
      return Submit(w, {"state", kAnyInstance, 0, worker.giver == w ? packed : ""});
    case Phase::kTake:
      return TakeState(w);
    case Phase::kDone:
      break;
  }
  return Wrong("worker ", w, " goes on when it is done");
}

absl::Status RecoverySim::Submit(int32_t w, Tensor tensor) {
  WorkerModel& worker = workers_[static_cast<size_t>(w)];
  const TensorId id{++worker.last_id};
  TensorsSubmitted submitted;
  submitted.tensors.push_back({id, SpecOf(tensor), coordd_.now() + absl::Minutes(10)});
  worker.open[id] = std::move(tensor);
  return Turn(w, std::move(submitted));
}

absl::Status RecoverySim::SubmitTensorOfStep(int32_t w) {
  WorkerModel& worker = workers_[static_cast<size_t>(w)];
  const size_t at = random_.Below(worker.to_submit.size());
  const int32_t tensor = worker.to_submit[at];
  worker.to_submit.erase(worker.to_submit.begin() + static_cast<int64_t>(at));
  return Submit(w, {absl::StrCat("t", tensor), worker.trained.step, 0, worker.contributes});
}

// The last commit is that at which nobody waits outside any more. (A program cannot know that; it
// is what shows that whoever waits is let in.)
absl::Status RecoverySim::Commit(int32_t w) {
  WorkerModel& worker = workers_[static_cast<size_t>(w)];
  const bool changes = worker.newcomers > 0 || worker.is_to_leave || worker.wants_change;
  const bool goes_on = worker.trained.step < options_.steps ||
                       std::any_of(workers_.begin(), workers_.end(), IsOutside);
  worker.phase = Phase::kDecide;
  return Submit(
      w, {"changes", ++worker.trained.commits, 0,
          absl::StrCat(worker.contributes, changes ? " changes" : "", goes_on ? " goes_on" : "")});
}

absl::Status RecoverySim::Decide(int32_t w) {
  WorkerModel& worker = workers_[static_cast<size_t>(w)];
  if (worker.changes) {
    worker.wants_change = false;
    if (worker.is_to_leave) return Leave(w);
    worker.phase = Phase::kChange;
    if (options_.bug == RecoveryBug::kChangeOfAnyGeneration) worker.agreed_in = worker.generation;
    return Turn(w, MembersMayChange{Generation{worker.agreed_in}});
  }
  const bool trains = worker.trained.step < options_.steps;
  // Without it no time would pass, and whoever comes is announced after a while.
  if (!trains || random_.Below(3) == 0) worker.computes_until = coordd_.now() + kComputes;
  worker.phase = trains ? Phase::kTrain : worker.goes_on ? Phase::kCommit : Phase::kDone;
  return absl::OkStatus();
}

absl::Status RecoverySim::TakeState(int32_t w) {
  WorkerModel& worker = workers_[static_cast<size_t>(w)];
  if (!worker.given.has_value()) {  // who was to give it is gone
    worker.phase = Phase::kOwners;
    return absl::OkStatus();
  }
  const std::vector<std::string> parts = absl::StrSplit(*worker.given, '/');
  Trained taken;
  const bool parsed = absl::SimpleAtoi(parts[0], &taken.step) &&
                      absl::SimpleAtoi(parts[1], &taken.commits) &&
                      absl::SimpleAtoi(parts[2], &taken.digest);
  if (!parsed) return Wrong("worker ", w, " is given the state ", *worker.given);
  const bool is_own = taken.step == worker.trained.step &&
                      taken.commits == worker.trained.commits &&
                      taken.digest == worker.trained.digest;
  if (worker.shared && !is_own)
    return Wrong("worker ", w, " has the state of all and is given another one, of step ",
                 taken.step);
  if (!is_own) ++given_;
  worker.trained = taken;
  worker.shared = true;
  worker.phase = taken.step < options_.steps ? Phase::kTrain : Phase::kCommit;
  return absl::OkStatus();
}

std::map<int32_t, std::pair<int32_t, std::string>> RecoverySim::Contributions(const Batch& batch,
                                                                              size_t at) {
  std::map<int32_t, std::pair<int32_t, std::string>> found;
  for (const auto& [member, rank] : batch.members)
    found[rank] = {member, batch.parts.at(member).values[at]};
  return found;
}

// Whoever contributes to a step or a commit has the same state.
absl::Status RecoverySim::OnValue(int32_t w, const Tensor& tensor, int64_t generation,
                                  const Batch& batch, size_t at) {
  WorkerModel& worker = workers_[static_cast<size_t>(w)];
  if (tensor.set != 0) return absl::OkStatus();
  const auto contributions = Contributions(batch, at);
  if (tensor.name == "owners") {
    auto first = contributions.begin();
    while (first != contributions.end() && first->second.second != "shared") ++first;
    if (first == contributions.end()) first = contributions.begin();
    if (options_.bug == RecoveryBug::kNewcomerGives) first = std::prev(contributions.end());
    worker.giver = first->second.first;
    return absl::OkStatus();
  }
  if (tensor.name == "state") {
    for (const auto& [rank, from] : contributions)
      if (!from.second.empty() && !worker.given.has_value()) worker.given = from.second;
    return absl::OkStatus();
  }
  const bool is_commit = tensor.name == "changes";
  if (is_commit) {
    worker.agreed_in = generation;
    worker.changes = worker.goes_on = false;
  }
  for (const auto& [rank, from] : contributions) {
    const std::vector<std::string> said = absl::StrSplit(from.second, ' ');
    if (said[0] != worker.contributes)
      return Wrong("worker ", w, " has the state ", worker.contributes, ", worker ", from.first,
                   " contributes to ", tensor.name, "#", tensor.instance, " from ", said[0]);
    const bool is_heard =
        is_commit && (options_.bug != RecoveryBug::kNewcomersApart || from.first == w);
    const auto says = [&](absl::string_view word) {
      return std::find(said.begin(), said.end(), word) != said.end();
    };
    worker.changes = worker.changes || (is_heard && says("changes"));
    worker.goes_on = worker.goes_on || (is_commit && says("goes_on"));
  }
  // The sum does not depend on the order in which results come.
  if (!is_commit)
    worker.trained.digest +=
        Fingerprint(absl::StrCat(tensor.name, "#", tensor.instance, "@", generation));
  return absl::OkStatus();
}

// It waits until the members let it in.
void RecoverySim::Come() {
  const int32_t w = count() - newcomers_left_--;
  workers_[static_cast<size_t>(w)].alive = true;
  coordd_.SendJoin(w, JoinFor(w));
}

}  // namespace coordd
