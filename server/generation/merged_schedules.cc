#include "server/generation/merged_schedules.h"

#include "absl/strings/str_cat.h"
#include "common/protocol/protocol_bounds.h"
#include "server/model/graveyard.h"

namespace coordd {

absl::Status MergedSchedules::Append(const v1::Schedule& part, ById& schedules) {
  if (part.id() < 1 || part.id() > kMaxSchedules)
    return absl::InternalError(absl::StrCat("schedule ", part.id(), " is on lane ", part.lane()));
  v1::Schedule& whole = schedules[part.id()];
  const bool more = part.more();
  whole.mutable_batches()->MergeFrom(part.batches());
  whole.set_id(part.id());
  whole.set_lane(part.lane());
  whole.set_process_set(part.process_set());
  whole.set_more(more);
  return absl::OkStatus();
}

absl::Status MergedSchedules::Hear(const v1::CoordinatorMessage& message) {
  if (message.has_freeze()) Freeze(message.freeze().id());
  if (message.has_cut()) cut_.insert(message.cut().id());
  return message.has_schedule() ? Append(message.schedule(), heard_) : absl::OkStatus();
}

void MergedSchedules::Freeze(int64_t id) {
  if (id >= 1 && id <= kMaxSchedules) frozen_.insert(id);
}

std::map<int64_t, v1::Schedule>& MergedSchedules::Whole() {
  reported_.merge(heard_);
  heard_.clear();
  return reported_;
}

int64_t MergedSchedules::Free(int64_t most) {
  const int64_t freed = FreeFirst(reported_, most);
  return freed + FreeFirst(heard_, most - freed);
}

}  // namespace coordd
