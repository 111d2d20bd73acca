#include "worker/node_lane.h"

#include <functional>

#include "common/check.h"
#include "worker/copy_bytes.h"

namespace coordd {

NodeLane::NodeLane(LaneId lane, std::vector<NodeMemory> members, int32_t self)
    : lane_(lane), self_(self) {
  COORDD_CHECK(members.size() <= kMaxMembers && self < static_cast<int32_t>(members.size()));
  for (const NodeMemory& memory : members) members_.push_back({memory, nullptr});
  Member& own = members_[static_cast<size_t>(self)];
  own_entry_ = own.entry = NodeBoard(own.memory.data()).Claim(lane);
}

bool NodeLane::IsMapped(absl::Span<const std::byte> bytes) const {
  const NodeMemory own = memory(self_);
  const std::less_equal<const std::byte*> not_behind;
  return bytes.empty() || (not_behind(own.data(), bytes.data()) &&
                           not_behind(bytes.data() + bytes.size(), own.data() + own.size()));
}

bool NodeLane::Find(int32_t member) {
  Member& m = members_[static_cast<size_t>(member)];
  m.entry = NodeBoard(m.memory.data()).Find(lane_);
  return m.entry != nullptr;
}

void NodeLane::Finish(int64_t step) {
  step_ = step;
  own_entry_->finished.store(step, std::memory_order_release);
}

void NodeLane::ExpectPayload(int64_t size_bytes) const {
  const int64_t place = BoardPost::PlaceFor(size_bytes);
  const BoardPost& next = own_entry_->posts[(step_ + 1) % 2];
  if (place > 0) FetchToWrite(next.payload + place, size_bytes);
}

bool NodeLane::Release() {
  if (own_entry_ == nullptr) return true;
  for (Member& member : members_) {
    // A lane that never ran a collective has entries that nobody has looked for.
    if (member.entry == nullptr || member.entry == own_entry_) continue;
    // Who has given its own entry back is through; the entry may be another lane's by now.
    if (NodeBoard(member.memory.data()).Find(lane_) != member.entry) continue;
    if (member.entry->finished.load(std::memory_order_acquire) < step_) return false;
  }
  NodeBoard(memory(self_).data()).Free(lane_);
  own_entry_ = nullptr;
  return true;
}

}  // namespace coordd
