#include "server/model/event_log.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/protocol/protocol_bounds.h"
#include "server/model/validate_message.h"

namespace coordd {

v1::EventKind KindOf(Event::Kind kind) {
  switch (kind) {
    case Event::Kind::kJobCreated:
      return v1::EVENT_KIND_JOB_CREATED;
    case Event::Kind::kJobEnded:
      return v1::EVENT_KIND_JOB_ENDED;
    case Event::Kind::kWorkerJoined:
      return v1::EVENT_KIND_WORKER_JOINED;
    case Event::Kind::kJoinRefused:
      return v1::EVENT_KIND_JOIN_REFUSED;
    case Event::Kind::kWorkerDeparted:
      return v1::EVENT_KIND_WORKER_DEPARTED;
    case Event::Kind::kGenerationFormed:
      return v1::EVENT_KIND_GENERATION_FORMED;
    case Event::Kind::kGenerationEnded:
      return v1::EVENT_KIND_GENERATION_ENDED;
    case Event::Kind::kTensorFailed:
      return v1::EVENT_KIND_TENSOR_FAILED;
    case Event::Kind::kStallBegan:
      return v1::EVENT_KIND_STALL_BEGAN;
    case Event::Kind::kStallEnded:
      return v1::EVENT_KIND_STALL_ENDED;
    case Event::Kind::kProcessSetChanged:
      return v1::EVENT_KIND_PROCESS_SET_CHANGED;
    case Event::Kind::kProcessSetRefused:
      return v1::EVENT_KIND_PROCESS_SET_REFUSED;
    case Event::Kind::kRankJoined:
      return v1::EVENT_KIND_RANK_JOINED;
    case Event::Kind::kScheduleBegan:
      return v1::EVENT_KIND_SCHEDULE_BEGAN;
    case Event::Kind::kScheduleBroken:
      return v1::EVENT_KIND_SCHEDULE_BROKEN;
    case Event::Kind::kTraced:
      return v1::EVENT_KIND_TRACED;
    case Event::Kind::kProtocolError:
      return v1::EVENT_KIND_PROTOCOL_ERROR;
    case Event::Kind::kJobRestored:
      return v1::EVENT_KIND_JOB_RESTORED;
    case Event::Kind::kJobResumed:
      return v1::EVENT_KIND_JOB_RESUMED;
    case Event::Kind::kNotStored:
      return v1::EVENT_KIND_NOT_STORED;
    case Event::Kind::kAsleep:
      return v1::EVENT_KIND_ASLEEP;
    case Event::Kind::kProcessEnded:
      return v1::EVENT_KIND_PROCESS_ENDED;
    case Event::Kind::kDrainBegan:
      return v1::EVENT_KIND_DRAIN_BEGAN;
    case Event::Kind::kDrainLifted:
      return v1::EVENT_KIND_DRAIN_LIFTED;
    case Event::Kind::kRankStuck:
      return v1::EVENT_KIND_RANK_STUCK;
    case Event::Kind::kStateLost:
      return v1::EVENT_KIND_STATE_LOST;
    case Event::Kind::kTensorsPlanned:
    case Event::Kind::kStaleMessage:
    case Event::Kind::kFailureReported:
      break;
  }
  return v1::EVENT_KIND_UNSPECIFIED;
}

bool IsWarning(const Event& event) {
  switch (event.kind) {
    case Event::Kind::kWorkerDeparted:
      return event.cause != v1::DEPARTURE_CAUSE_LEFT && event.cause != v1::DEPARTURE_CAUSE_DRAINED;
    case Event::Kind::kJoinRefused:
    case Event::Kind::kTensorFailed:
    case Event::Kind::kProcessSetRefused:
    case Event::Kind::kStallBegan:
    case Event::Kind::kRankStuck:
    case Event::Kind::kStateLost:
    case Event::Kind::kNotStored:
    case Event::Kind::kProtocolError:
    case Event::Kind::kProcessEnded:
      return true;
    default:
      return false;
  }
}

bool StrangersCause(Event::Kind kind) {
  return kind == Event::Kind::kJoinRefused || kind == Event::Kind::kProtocolError ||
         kind == Event::Kind::kStaleMessage;
}

void EventLog::Add(const Event& event, absl::string_view owner, absl::Time now) {
  const v1::EventKind kind = KindOf(event.kind);
  if (kind == v1::EVENT_KIND_UNSPECIFIED || event.text.empty()) return;
  auto added = std::make_shared<v1::JobEvent>();
  v1::JobEvent& kept = *added;
  kept.set_unix_seconds(absl::ToDoubleSeconds(now - absl::UnixEpoch()));
  kept.set_kind(kind);
  kept.set_warning(IsWarning(event));
  kept.set_job(event.job);
  kept.set_generation(event.generation);
  kept.set_cause(event.cause);
  kept.set_text(Truncated(event.text, kMaxReasonBytes));
  MutexLock lock(&mu_);
  if (StrangersCause(event.kind)) {
    const std::optional<std::string> more =
        limits_.try_emplace(event.kind, kStrangersEvery).first->second.Pass(now);
    if (!more.has_value()) return;
    kept.set_text(Truncated(absl::StrCat(event.text, *more), kMaxReasonBytes));
  }
  kept.set_number(++last_number_);
  // No name of an owner has a space.
  KeepLocked(
      {std::move(added), owner.empty() ? absl::StrCat("job ", event.job) : std::string(owner)});
  if (events_.size() > kEventsKept) MakeRoomLocked();
}

void EventLog::KeepLocked(Kept kept) {
  std::deque<Number>& numbers = numbers_[kept.owner];
  if (!numbers.empty()) order_.erase(ShareOf(kept.owner, numbers));
  numbers.push_back(last_number_);
  order_.insert(ShareOf(kept.owner, numbers));
  events_.emplace(last_number_, std::move(kept));
}

// So whoever has events all the time, in however many jobs, does not push out what others have had
// in days.
void EventLog::MakeRoomLocked() {
  const auto [_, oldest, owner] = *order_.begin();
  order_.erase(order_.begin());
  events_.erase(oldest);
  const auto left = numbers_.find(owner);
  left->second.pop_front();
  if (left->second.empty()) {
    numbers_.erase(left);
  } else {
    order_.insert(ShareOf(owner, left->second));
  }
}

v1::EventList EventLog::Read(const v1::GetEventsRequest& request) const {
  v1::EventList list;
  list.set_epoch(ToInt(epoch_));
  const size_t limit =
      request.limit() > 0 ? static_cast<size_t>(request.limit()) : size_t{kEventsKept};
  std::vector<std::shared_ptr<const v1::JobEvent>> found;  // newest first
  {
    MutexLock lock(&mu_);
    list.set_forgotten(events_.empty() ? 0 : events_.begin()->first - 1);
    for (auto kept = events_.rbegin(); kept != events_.rend() && found.size() < limit; ++kept) {
      if (kept->first <= request.after()) break;
      const auto& event = kept->second.event;
      if (request.job().empty() || event->job() == request.job()) found.push_back(event);
    }
  }
  for (auto event = found.rbegin(); event != found.rend(); ++event) *list.add_events() = **event;
  return list;
}

}  // namespace coordd
