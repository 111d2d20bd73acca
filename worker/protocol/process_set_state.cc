#include "worker/protocol/process_set_state.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/one_line.h"
#include "common/base/status_macros.h"
#include "common/protocol/protocol_bounds.h"
#include "worker/execute/worker_errors.h"

namespace coordd {
namespace {

v1::ProcessSetRequest WithdrawalOf(const v1::ProcessSetRequest& request) {
  v1::ProcessSetRequest withdrawal;
  withdrawal.set_request(request.request());
  withdrawal.set_name(request.name());
  withdrawal.set_withdrawn(true);
  return withdrawal;
}

}  // namespace

ProcessSetState::ProcessSetState(Rank self, int32_t size, const v1::ProcessSets& found)
    : self_(self), size_(size) {
  for (const v1::ProcessSet& before : found.sets()) {
    Set& set = sets_[ProcessSetId{before.process_set()}];
    set.ranks.assign(before.ranks().begin(), before.ranks().end());
    set.member = std::binary_search(set.ranks.begin(), set.ranks.end(), ToInt(self_));
  }
}

std::vector<DefineProcessSet> ProcessSetState::AskedFor() const {
  std::vector<DefineProcessSet> sets;
  for (const auto& [id, set] : sets_)
    if (!set.for_pair && set.name.empty())
      sets.push_back({id, set.ranks, set.member, /*for_pair=*/false});
  return sets;
}

std::string ProcessSetState::NameOf(const ProcessSetAsked& asked) const {
  const auto ends = sets_.find(asked.remove);
  return ends == sets_.end() ? asked.name : ends->second.name;
}

absl::Status ProcessSetState::CheckAsked(const ProcessSetAsked& asked) const {
  const std::string name = NameOf(asked);
  if (name.empty() || !named_.contains(name)) return absl::OkStatus();
  return absl::AlreadyExistsError(
      absl::StrCat("process set ", name, ": this rank asks for it already and waits"));
}

v1::ProcessSetRequest ProcessSetState::Ask(ProcessSetAsked asked, absl::Time now) {
  v1::ProcessSetRequest message;
  const std::string name = NameOf(asked);
  message.set_name(name);
  if (name.empty()) message.set_request(++last_request_);
  message.set_remove(ToInt(asked.remove));
  message.mutable_ranks()->Assign(asked.ranks.begin(), asked.ranks.end());
  const std::string called = name.empty() ? "" : absl::StrCat(" ", name);
  const std::string what = ToInt(asked.remove) != 0
                               ? absl::StrCat("the removal of process set ", ToInt(asked.remove))
                               : absl::StrCat("the process set", called, " of ranks [",
                                              absl::StrJoin(asked.ranks, ", "), "]");
  Request request{asked.token, message, what, now, asked.deadline, {}};
  if (name.empty()) {
    requests_.emplace(last_request_, std::move(request));
  } else {
    named_.emplace(name, std::move(request));
  }
  return message;
}

std::vector<ProcessSetState::Request*> ProcessSetState::Open() {
  std::vector<Request*> open;
  for (auto& [number, request] : requests_) open.push_back(&request);
  for (auto& [name, request] : named_) open.push_back(&request);
  return open;
}

absl::Status ProcessSetState::OnChange(const v1::ProcessSetChange& change,
                                       std::vector<WorkerEffect>& out) {
  const ProcessSetId id{change.process_set()};
  absl::Status answer;
  if (change.code() != 0) {
    answer = absl::Status(static_cast<absl::StatusCode>(change.code()), OneLine(change.message()));
  } else if (!change.ranks().empty()) {
    COORDD_RETURN_IF_ERROR(Define(change, out));
  } else {
    const auto ended = sets_.find(id);
    const bool again = change.request() <= last_request_ && !requests_.contains(change.request());
    if (ended == sets_.end() && again) return absl::OkStatus();  // others had not heard it
    if (ended == sets_.end())
      return absl::InternalError(
          absl::StrCat("coordd ended process set ", ToInt(id), ", which does not exist"));
    out.push_back(EndProcessSet{id, ended->second.member});
    sets_.erase(ended);
    ended_.insert(id);
  }
  // While this rank has joined it hears of what others have asked for in vain, as if it had asked.
  last_request_ = std::max(last_request_, change.request());
  Answer(change, std::move(answer), out);
  return absl::OkStatus();
}

void ProcessSetState::Answer(const v1::ProcessSetChange& change, absl::Status answer,
                             std::vector<WorkerEffect>& out) {
  const auto numbered = requests_.find(change.request());
  const auto named = named_.find(change.name());
  if (numbered == requests_.end() && named == named_.end()) return;
  const Request& request = named == named_.end() ? numbered->second : named->second;
  const absl::Status& withdrawn = request.withdrawn;
  if (!answer.ok() && !withdrawn.ok()) {
    // It was this rank that gave up: its own reason first, then what coordd knows.
    answer =
        absl::Status(withdrawn.code(), absl::StrCat(withdrawn.message(), "; ", answer.message()));
  }
  out.push_back(
      ProcessSetAnswer{request.token, std::move(answer), ProcessSetId{change.process_set()}});
  if (named == named_.end()) {
    requests_.erase(numbered);
  } else {
    named_.erase(named);
  }
}

absl::Status ProcessSetState::Define(const v1::ProcessSetChange& change,
                                     std::vector<WorkerEffect>& out) {
  const ProcessSetId id{change.process_set()};
  Set set;
  set.ranks.assign(change.ranks().begin(), change.ranks().end());
  set.member = std::binary_search(set.ranks.begin(), set.ranks.end(), ToInt(self_));
  set.for_pair = change.request() == 0 && change.name().empty();
  set.name = change.name();
  const bool increasing = std::adjacent_find(set.ranks.begin(), set.ranks.end(),
                                             std::greater_equal<>()) == set.ranks.end();
  // Pairs are announced when their tensors are there: not in the order of their numbers.
  const bool is_new = ToInt(id) > 0 && ToInt(id) < kProcessSetNumbers && !sets_.contains(id) &&
                      !ended_.contains(id);
  if (!is_new || !increasing || set.ranks.front() < 0 || set.ranks.back() >= size_) {
    return absl::InternalError(absl::StrCat(
        "coordd defined process set ", ToInt(id), " of ranks [", absl::StrJoin(set.ranks, ", "),
        "], expected a number that was not used, from 1 to ", kProcessSetNumbers - 1,
        ", and strictly increasing ranks of ", size_));
  }
  out.push_back(DefineProcessSet{id, set.ranks, set.member, set.for_pair});
  sets_.emplace(id, std::move(set));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<v1::ProcessSetRequest>> ProcessSetState::Withdraw(absl::Time now,
                                                                             bool answerable) {
  std::vector<v1::ProcessSetRequest> messages;
  for (Request* const request : Open()) {
    if (request->deadline > now) continue;
    if (!request->withdrawn.ok() && !answerable) {
      request->deadline = now + kWithdrawalAnswer;
      continue;
    }
    if (!request->withdrawn.ok()) {
      return absl::UnavailableError(absl::StrCat("coordd did not answer the withdrawal of ",
                                                 request->what, " within ",
                                                 SecondsText(kWithdrawalAnswer)));
    }
    const absl::string_view who = request->message.name().empty() ? "rank" : "member";
    request->withdrawn = absl::DeadlineExceededError(
        absl::StrCat(request->what, ": not every ", who, " had asked for it ",
                     SecondsText(now - request->asked_at), " after rank ", ToInt(self_)));
    request->deadline = now + kWithdrawalAnswer;
    messages.push_back(WithdrawalOf(request->message));
  }
  return messages;
}

absl::Time ProcessSetState::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [number, request] : requests_) next = std::min(next, request.deadline);
  for (const auto& [name, request] : named_) next = std::min(next, request.deadline);
  return next;
}

void ProcessSetState::FailRequests(const absl::Status& why, std::vector<WorkerEffect>& out) {
  for (const Request* const request : Open()) {
    absl::Status named(why.code(), absl::StrCat(request->what, ": ", why.message()));
    if (IsGenerationChanged(why)) named = GenerationChanged(std::move(named));
    out.push_back(ProcessSetAnswer{request->token, std::move(named), ProcessSetId{}});
  }
  requests_.clear();
  named_.clear();
}

absl::StatusOr<int64_t> ProcessSetState::AnsweredRequests() const {
  const int64_t answered = last_request_ - static_cast<int64_t>(requests_.size());
  if (requests_.empty() || requests_.begin()->first == answered + 1) return answered;
  return absl::UnimplementedError(
      absl::StrCat("its request ", requests_.begin()->first,
                   " for a process set is open, and a later one is answered"));
}

std::vector<v1::ProcessSetRequest> ProcessSetState::AskAnew(absl::Time now) {
  std::vector<v1::ProcessSetRequest> messages;
  for (Request* const request : Open()) {
    messages.push_back(request->message);
    if (request->withdrawn.ok()) continue;
    request->deadline = now + kWithdrawalAnswer;
    messages.push_back(WithdrawalOf(request->message));
  }
  return messages;
}

bool ProcessSetState::IsFirstOf(ProcessSetId process_set) const {
  if (ToInt(process_set) == 0) return ToInt(self_) == 0;
  const auto found = sets_.find(process_set);
  return found != sets_.end() && found->second.ranks.front() == ToInt(self_);
}

std::optional<v1::ProcessSetChange> ProcessSetState::Announced(ProcessSetId process_set) const {
  const auto found = sets_.find(process_set);
  if (found == sets_.end()) return std::nullopt;
  const Set& set = found->second;
  v1::ProcessSetChange change;
  change.set_process_set(ToInt(process_set));
  // A pair is what nobody has asked for.
  change.set_request(set.for_pair || !set.name.empty() ? 0 : 1);
  change.set_name(set.name);
  change.mutable_ranks()->Assign(set.ranks.begin(), set.ranks.end());
  return change;
}

std::vector<v1::ProcessSetChange> ProcessSetState::SetsOfFirstRank() const {
  std::vector<v1::ProcessSetChange> changes;
  for (const auto& [id, set] : sets_)
    if (set.ranks.front() == ToInt(self_)) changes.push_back(*Announced(id));
  return changes;
}

bool ProcessSetState::IsMember(ProcessSetId process_set) const {
  if (ToInt(process_set) == 0) return true;
  const auto found = sets_.find(process_set);
  return found != sets_.end() && found->second.member;
}

bool ProcessSetState::IsForPair(ProcessSetId process_set) const {
  const auto found = sets_.find(process_set);
  return found != sets_.end() && found->second.for_pair;
}

bool ProcessSetState::Contains(ProcessSetId process_set, int32_t rank) const {
  if (ToInt(process_set) == 0) return rank >= 0 && rank < size_;
  const auto found = sets_.find(process_set);
  return found != sets_.end() &&
         std::binary_search(found->second.ranks.begin(), found->second.ranks.end(), rank);
}

}  // namespace coordd
