#include "server/generation/stall_watch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/duration_text.h"

namespace coordd {
namespace {

std::string OfSet(const PendingTensor& tensor) {
  return tensor.process_set == ProcessSetId{0}
             ? ""
             : absl::StrCat(" of process set ", ToInt(tensor.process_set));
}

// "tensor grad/17 of process set 3", or what a request asks for.
std::string TitleOf(const PendingTensor& tensor) {
  return absl::StrCat("tensor ", tensor.name, OfSet(tensor));
}

std::string WhoIsIn(const PendingTensor& tensor) {
  return absl::StrCat(
      ": in ", RanksString(tensor.ready, tensor.ready_count),
      tensor.missing_count == 0
          ? ""
          : absl::StrCat(", missing ", RanksString(tensor.missing, tensor.missing_count)));
}

}  // namespace

absl::Time StallWatch::NextDeadline() const {
  const auto [warning, abort] = patience_;
  return std::min({waits_.requests.NextStall(warning, abort),
                   waits_.schedules.table().NextStall(warning, abort),
                   waits_.sets.join().NextSilence(warning, abort), waits_.sets.NextStall(),
                   waits_.comms.NextStall(warning), waits_.devices.NextStall(warning)});
}

void StallWatch::Tick(const Turn& turn) {
  WatchTensors(turn);
  WatchRequests(turn);
  WatchJoin(turn);
  WatchSchedules(turn);
  WatchComms(turn);
  WatchDevices(turn);
}

// One event for all that stall at once: usually one rank is late with a whole step.
void StallWatch::TellBegan(const PendingTensor& oldest, int64_t count, const Turn& turn) {
  messages_.Emit(
      Event::Kind::kStallBegan,
      absl::StrCat(TitleOf(oldest), count > 1 ? absl::StrCat(" and ", count - 1, " more") : "",
                   " waiting for ", DurationText(turn.now - oldest.since), WhoIsIn(oldest)),
      turn.effects, count);
  told_ += count;
}

void StallWatch::WatchTensors(const Turn& turn) {
  int64_t count = 0;
  std::optional<PendingTensor> oldest;
  std::vector<FailedTensor> failed;
  while (SetNegotiation* const set = waits_.sets.Stalling(turn.now)) {
    int64_t in_set = 0;
    std::vector<PendingTensor> first =
        set->table().NewlyStalled(turn.now, patience_.warning, /*limit=*/1, in_set);
    count += in_set;
    if (!first.empty() && (!oldest.has_value() || first.front().since < oldest->since)) {
      oldest = std::move(first.front());
      oldest->process_set = set->id();
    }
    set->table().FailOlderThan(turn.now, patience_.abort, failed);
    waits_.sets.Settle(*set);
  }
  if (count > 0) TellBegan(*oldest, count, turn);
  for (FailedTensor& one : failed) {
    absl::Status& status = one.fault.status;
    status = absl::Status(status.code(), absl::StrCat(status.message(), At(one.fault.blamed)));
  }
  messages_.DeliverFailures(failed, turn.effects);
  NoteEnded(turn.effects);
}

void StallWatch::WatchRequests(const Turn& turn) {
  for (const PendingRequest& request : waits_.requests.NewlyStalled(turn.now, patience_.warning)) {
    messages_.Emit(
        Event::Kind::kStallBegan,
        absl::StrCat(request.title, " waiting for ", DurationText(turn.now - request.since),
                     ": made by ", RanksString(request.ready, request.ready_count), ", missing ",
                     RanksString(request.missing, request.missing_count)),
        turn.effects, 1);
  }
  std::vector<FailedRequest> failed;
  waits_.requests.FailOlderThan(turn.now, patience_.abort, failed);
  messages_.DeliverRefusals(failed, turn.effects);
}

void StallWatch::WatchJoin(const Turn& turn) {
  JoinState& join = waits_.sets.join();
  if (const auto silent = join.NewlySilent(turn.now, patience_.warning)) {
    messages_.Emit(
        Event::Kind::kStallBegan,
        absl::StrCat("join: joined by ", RanksString(silent->ready, silent->ready_count),
                     ", nothing from ", RanksString(silent->missing, silent->missing_count),
                     " for ", DurationText(turn.now - silent->since)),
        turn.effects, 1);
  }
  std::vector<FailedTensor> failed;
  if (!join.FailSilence(turn.now, patience_.abort, failed)) return;
  waits_.sets.EndJoin();
  waits_.sets.Settle();
  messages_.DeliverFailures(failed, turn.effects);
}

void StallWatch::WatchSchedules(const Turn& turn) {
  for (const PendingTensor& tensor : waits_.schedules.NewlyStalled(turn.now, patience_.warning)) {
    TellBegan(tensor, 1, turn);
  }
}

void StallWatch::WatchComms(const Turn& turn) {
  for (const PendingTensor& call : waits_.comms.NewlyStalled(turn.now, patience_.warning)) {
    ++told_calls_;
    messages_.Emit(Event::Kind::kStallBegan,
                   absl::StrCat(call.name, " waiting for ", DurationText(turn.now - call.since),
                                WhoIsIn(call)),
                   turn.effects, 1);
  }
}

// One event for all: behind the first one, and on each device behind its own, others wait.
void StallWatch::WatchDevices(const Turn& turn) {
  const std::vector<PendingTensor> stalled =
      waits_.devices.NewlyStalled(turn.now, patience_.warning);
  if (stalled.empty()) return;
  const PendingTensor& oldest = stalled.front();
  const auto count = static_cast<int64_t>(stalled.size());
  told_devices_ += count;
  messages_.Emit(Event::Kind::kStallBegan,
                 absl::StrCat(oldest.name, OfSet(oldest),
                              count > 1 ? absl::StrCat(" and ", count - 1, " more batches stand")
                                        : std::string(" stands"),
                              " on the device for ", DurationText(turn.now - oldest.since), ": ",
                              oldest.on_devices),
                 turn.effects, count);
}

void StallWatch::NoteGoneOn(int64_t& told, int64_t stalled, absl::string_view one,
                            absl::string_view more, Effects& effects) {
  const int64_t gone_on = told - stalled;
  if (gone_on <= 0) return;
  told -= gone_on;
  messages_.Emit(Event::Kind::kStallEnded,
                 absl::StrCat(gone_on, gone_on == 1 ? one : more, " on, ", told, " still stalled"),
                 effects, gone_on);
}

void StallWatch::NoteEnded(Effects& effects) {
  NoteGoneOn(told_calls_, waits_.comms.stalled(), " stalled call of a comm goes",
             " stalled calls of comms go", effects);
  NoteGoneOn(told_devices_, waits_.devices.stalled(), " batch that stood on devices goes",
             " batches that stood on devices go", effects);
  const int64_t stalled = waits_.sets.stalled() + waits_.schedules.table().stalled();
  const int64_t ended = told_ - stalled;
  if (ended == 0) return;
  told_ = stalled;
  messages_.Emit(Event::Kind::kStallEnded,
                 absl::StrCat(ended, ended == 1 ? " stalled tensor is" : " stalled tensors are",
                              " no longer pending, ", told_, " still stalled"),
                 effects, ended);
}

std::vector<PendingTensor> StallWatch::Stalled(absl::Time now, absl::Duration age,
                                               size_t limit) const {
  std::vector<PendingTensor> stalled;
  for (const PendingRequest& request : waits_.requests.Stalled(now, age)) {
    stalled.push_back({.process_set = ProcessSetId{0},
                       .name = request.title,
                       .since = request.since,
                       .ready = request.ready,
                       .missing = request.missing,
                       .missing_count = request.missing_count,
                       .ready_count = request.ready_count});
  }
  for (PendingTensor& tensor : waits_.sets.Stalled(now, age, limit))
    stalled.push_back(std::move(tensor));
  for (PendingTensor& tensor : waits_.schedules.table().Stalled(now, age))
    stalled.push_back(std::move(tensor));
  for (PendingTensor& call : waits_.comms.Stalled(now, age, limit))
    stalled.push_back(std::move(call));
  for (PendingTensor& batch : waits_.devices.Stalled(now, age, limit)) {
    absl::StrAppend(&batch.name, " on the device");
    stalled.push_back(std::move(batch));
  }
  std::stable_sort(
      stalled.begin(), stalled.end(),
      [](const PendingTensor& a, const PendingTensor& b) { return a.since < b.since; });
  if (stalled.size() > limit) stalled.resize(limit);
  return stalled;
}

bool StallWatch::IsAwaited(Rank rank, absl::Time now) const {
  constexpr size_t kLookedAt = 8;  // the oldest tensors, and of each the first ranks
  if (told_ == 0 && told_calls_ == 0 && told_devices_ == 0) return false;
  for (const PendingTensor& tensor : Stalled(now, patience_.warning, kLookedAt)) {
    const size_t named = std::min(tensor.missing.size(), kLookedAt);
    const auto end = tensor.missing.begin() + static_cast<int64_t>(named);
    if (std::find(tensor.missing.begin(), end, rank) != end) return true;
  }
  return false;
}

void StallWatch::SetWhereabouts(Rank rank, std::string where) {
  if (where.empty()) {
    whereabouts_.erase(rank);
  } else {
    whereabouts_[rank] = std::move(where);
  }
}

std::string StallWatch::At(Rank rank) const {
  const auto found = whereabouts_.find(rank);
  if (found == whereabouts_.end()) return "";
  return absl::StrCat("; rank ", ToInt(rank), " is at ", found->second);
}

std::optional<std::string> StallWatch::Hopeless(absl::Time now) const {
  const std::vector<PendingTensor> stalled = waits_.schedules.table().Stalled(now, patience_.abort);
  if (stalled.empty()) return std::nullopt;
  const PendingTensor& tensor = stalled.front();
  return absl::StrCat("tensor ", tensor.name, " was not executed by ",
                      RanksString(tensor.missing, tensor.missing_count), " for ",
                      DurationText(now - tensor.since), ", but by ",
                      RanksString(tensor.ready, tensor.ready_count),
                      tensor.missing.empty() ? "" : At(tensor.missing.front()));
}

}  // namespace coordd
