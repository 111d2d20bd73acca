// What a generation waits for too long, and what operators see of it.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/duration_text.h"
#include "common/base/status_macros.h"
#include "server/generation/generation_state.h"

namespace coordd {
namespace {

// "tensor grad/17 of process set 3", or what a request asks for.
std::string Title(const PendingTensor& tensor) {
  return absl::StrCat("tensor ", tensor.name,
                      tensor.process_set == ProcessSetId{0}
                          ? ""
                          : absl::StrCat(" of process set ", ToInt(tensor.process_set)));
}

std::string WhoIsIn(const PendingTensor& tensor) {
  return absl::StrCat(": in ", RanksString(tensor.ready, tensor.ready_count), ", missing ",
                      RanksString(tensor.missing, tensor.missing_count));
}

}  // namespace

absl::Time GenerationState::NextDeadline() const {
  if (ended_) return absl::InfiniteFuture();
  if (!ready_.empty()) return absl::InfinitePast();
  absl::Time next = requests_.NextStall(options_.stall_warning, options_.stall_abort);
  next = std::min(next, schedules_.NextStall(options_.stall_warning, options_.stall_abort));
  next = std::min(next, join_.NextSilence(options_.stall_warning, options_.stall_abort));
  return deadlines_.empty() ? next : std::min(next, deadlines_.begin()->first);
}

void GenerationState::Forgive(absl::Duration gap) {
  for (const auto& [id, set] : states_) {
    set->table.Forgive(gap);
    Touch(*set);
  }
  requests_.Forgive(gap);
  join_.Forgive(gap);
  schedules_.Forgive(gap);
}

void GenerationState::WatchStalls(const Turn& turn) {
  WatchTensors(turn);
  WatchRequests(turn);
  WatchJoin(turn);
  WatchSchedules(turn);
}

// One event for all that stall at once: usually one rank is late with a whole step.
void GenerationState::EmitStall(const PendingTensor& oldest, int64_t count,
                                const Turn& turn) const {
  Emit(Event::Kind::kStallBegan,
       absl::StrCat(Title(oldest), count > 1 ? absl::StrCat(" and ", count - 1, " more") : "",
                    " waiting for ", DurationText(turn.now - oldest.since), WhoIsIn(oldest)),
       count, absl::StatusCode::kOk, turn.effects);
}

void GenerationState::WatchTensors(const Turn& turn) {
  int64_t count = 0;
  std::optional<PendingTensor> oldest;
  std::vector<FailedTensor> failed;
  while (!deadlines_.empty() && deadlines_.begin()->first <= turn.now) {
    SetState& set = *states_.at(deadlines_.begin()->second);
    int64_t in_set = 0;
    std::vector<PendingTensor> first =
        set.table.NewlyStalled(turn.now, options_.stall_warning, /*limit=*/1, in_set);
    count += in_set;
    if (!first.empty() && (!oldest.has_value() || first.front().since < oldest->since)) {
      oldest = std::move(first.front());
      oldest->process_set = set.id;
    }
    set.table.FailOlderThan(turn.now, options_.stall_abort, failed);
    Touch(set);
  }
  if (count > 0) {
    EmitStall(*oldest, count, turn);
    stalls_told_ += count;
  }
  for (FailedTensor& one : failed) {
    absl::Status& status = one.fault.status;
    status = absl::Status(status.code(), absl::StrCat(status.message(), At(one.fault.blamed)));
  }
  DeliverFailures(failed, turn.effects);
  NoteStallsEnded(turn.effects);
}

bool GenerationState::IsAwaited(Rank rank, absl::Time now) const {
  constexpr size_t kLookedAt = 8;  // the oldest tensors, and of each the first ranks
  if (stalls_told_ == 0) return false;
  for (const PendingTensor& tensor : Stalled(now, options_.stall_warning, kLookedAt)) {
    const size_t named = std::min(tensor.missing.size(), kLookedAt);
    const auto end = tensor.missing.begin() + static_cast<int64_t>(named);
    if (std::find(tensor.missing.begin(), end, rank) != end) return true;
  }
  return false;
}

void GenerationState::SetWhereabouts(Rank rank, std::string where) {
  if (where.empty()) {
    whereabouts_.erase(rank);
  } else {
    whereabouts_[rank] = std::move(where);
  }
}

std::string GenerationState::At(Rank rank) const {
  const auto found = whereabouts_.find(rank);
  if (found == whereabouts_.end()) return "";
  return absl::StrCat("; rank ", ToInt(rank), " is at ", found->second);
}

void GenerationState::WatchRequests(const Turn& turn) {
  for (const PendingRequest& request : requests_.NewlyStalled(turn.now, options_.stall_warning)) {
    Emit(Event::Kind::kStallBegan,
         absl::StrCat("process set request ", request.number, " to ", request.what, " waiting for ",
                      DurationText(turn.now - request.since), ": made by ",
                      RanksString(request.ready, request.ready_count), ", missing ",
                      RanksString(request.missing, request.missing_count)),
         1, absl::StatusCode::kOk, turn.effects);
  }
  std::vector<FailedRequest> failed;
  requests_.FailOlderThan(turn.now, options_.stall_abort, failed);
  DeliverRefusals(failed, turn.effects);
}

void GenerationState::WatchJoin(const Turn& turn) {
  if (const auto silent = join_.NewlySilent(turn.now, options_.stall_warning)) {
    Emit(Event::Kind::kStallBegan,
         absl::StrCat("join: joined by ", RanksString(silent->ready, silent->ready_count),
                      ", nothing from ", RanksString(silent->missing, silent->missing_count),
                      " for ", DurationText(turn.now - silent->since)),
         1, absl::StatusCode::kOk, turn.effects);
  }
  std::vector<FailedTensor> failed;
  if (!join_.FailSilence(turn.now, options_.stall_abort, failed)) return;
  EndJoin();
  TouchTouched();
  DeliverFailures(failed, turn.effects);
}

void GenerationState::NoteStallsEnded(Effects& effects) {
  const int64_t stalled = totals_.stalled + schedules_.stalled();
  const int64_t ended = stalls_told_ - stalled;
  if (ended == 0) return;
  stalls_told_ = stalled;
  Emit(Event::Kind::kStallEnded,
       absl::StrCat(ended, ended == 1 ? " stalled tensor is" : " stalled tensors are",
                    " no longer pending, ", stalls_told_, " still stalled"),
       ended, absl::StatusCode::kOk, effects);
}

std::vector<PendingTensor> GenerationState::Stalled(absl::Time now, absl::Duration age,
                                                    size_t limit) const {
  std::vector<PendingTensor> stalled;
  for (const PendingRequest& request : requests_.Stalled(now, age)) {
    stalled.push_back(
        {.process_set = ProcessSetId{0},
         .name = absl::StrCat("process set request ", request.number, " to ", request.what),
         .since = request.since,
         .ready = request.ready,
         .missing = request.missing,
         .missing_count = request.missing_count,
         .ready_count = request.ready_count});
  }
  for (const auto& [id, set] : states_) {
    if (set->deadline == absl::InfiniteFuture()) continue;  // nothing is pending
    for (PendingTensor& tensor : set->table.Stalled(now, age, limit)) {
      tensor.process_set = id;
      stalled.push_back(std::move(tensor));
    }
  }
  for (PendingTensor& tensor : schedules_.Stalled(now, age)) stalled.push_back(std::move(tensor));
  std::stable_sort(
      stalled.begin(), stalled.end(),
      [](const PendingTensor& a, const PendingTensor& b) { return a.since < b.since; });
  if (stalled.size() > limit) stalled.resize(limit);
  return stalled;
}

std::optional<PendingTensor> GenerationState::Find(Rank rank, ProcessSetId set,
                                                   absl::string_view name) const {
  const auto it = states_.find(set);
  if (it == states_.end()) return std::nullopt;
  std::optional<PendingTensor> found = it->second->table.Find(name);
  if (found.has_value() || set != ProcessSetId{0}) return found;
  for (ProcessSetId pair : sets_.PairsOf(rank)) {
    found = states_.at(pair)->table.Find(name);
    if (found.has_value()) return found;
  }
  return std::nullopt;
}

absl::Status GenerationState::CheckConsistency() const {
  COORDD_RETURN_IF_ERROR(requests_.CheckConsistency());
  COORDD_RETURN_IF_ERROR(schedules_.CheckConsistency());
  if (!device_order_.CountsAreRight()) return absl::InternalError("counts of ranks are wrong");
  ReadinessTotals sums(0);
  size_t deadlines = 0;
  for (const auto& [id, set] : states_) {
    COORDD_RETURN_IF_ERROR(set->table.CheckConsistency());
    const MemberList* members = sets_.Find(id);
    if (members == nullptr || members->size() != set->table.members().size()) {
      return absl::InternalError(absl::StrCat("process set ", ToInt(id), " is not what it was"));
    }
    if (!ended_ && set->table.has_ready() != ready_.contains(id)) {
      return absl::InternalError(absl::StrCat("process set ", ToInt(id), " is forgotten"));
    }
    if (!ended_ && set->deadline != absl::InfiniteFuture()) {
      ++deadlines;
      if (!deadlines_.contains({set->deadline, id}) ||
          set->deadline > set->table.NextStall(options_.stall_warning, options_.stall_abort)) {
        return absl::InternalError(absl::StrCat("process set ", ToInt(id), " has a late deadline"));
      }
    }
    sums.pending += set->table.pending();
    sums.tombstones += set->table.tombstones();
    sums.stalled += set->table.stalled();
  }
  if (sums.pending != totals_.pending || sums.tombstones != totals_.tombstones ||
      sums.stalled != totals_.stalled) {
    return absl::InternalError("the sums over the process sets are wrong");
  }
  if (deadlines != deadlines_.size()) return absl::InternalError("deadlines of no process set");
  return absl::OkStatus();
}

}  // namespace coordd
