#include "worker/node/node_lane.h"

#include <functional>

#include "common/base/check.h"
#include "worker/base/copy_bytes.h"

namespace coordd {

NodeLane::NodeLane(LaneId lane, const std::vector<NodeMemory>& members, int32_t self, LaneBell bell)
    : lane_(lane), self_(self), bell_(bell) {
  COORDD_CHECK(members.size() <= kMaxMembers && self < static_cast<int32_t>(members.size()));
  for (const NodeMemory& memory : members) members_.push_back({memory});
  Member& own = members_[static_cast<size_t>(self)];
  own_entry_ = own.entry = NodeBoard(own.memory.data()).Claim(lane);
  if (own_entry_ == nullptr) return;
  const bool of_lane = bell == LaneBell::kOfLane;
  own_bell_ = of_lane ? &own_entry_->bell : &NodeBoard(own.memory.data()).bell();
  // Who was first may wait for this entry. Who has none yet finds it before it sleeps.
  std::atomic_signal_fence(std::memory_order_seq_cst);
  for (int32_t member = 0; member < size(); ++member) {
    Member& m = members_[static_cast<size_t>(member)];
    if (member == self) continue;
    if (!of_lane) m.bell = &NodeBoard(m.memory.data()).bell();
    if (!of_lane || Find(member)) m.bell->Ring();
  }
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
  if (m.entry == nullptr) return false;
  if (bell_ == LaneBell::kOfLane) m.bell = &m.entry->bell;
  return true;
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

NodeLane::Ending NodeLane::EndingOf(int32_t member) const {
  const Member& m = members_[static_cast<size_t>(member)];
  const NodeBoard board(m.memory.data());
  if (board.left()) return Ending::kLeft;
  const BoardEntry* const entry = board.Find(lane_);
  if (entry != nullptr) return static_cast<Ending>(entry->ending.load(std::memory_order_acquire));
  const bool had_one = m.entry != nullptr || bell_ == LaneBell::kOfLane;
  return had_one ? Ending::kLeft : Ending::kNone;
}

bool NodeLane::Release() {
  if (own_entry_ == nullptr) return true;
  const bool of_lane = bell_ == LaneBell::kOfLane;
  if (of_lane) End(Ending::kLeft);
  for (Member& member : members_) {
    // A lane that never ran a collective has entries that nobody has looked for.
    if (member.entry == nullptr || member.entry == own_entry_) continue;
    // Who has given its own entry back is through; the entry may be another lane's by now.
    if (NodeBoard(member.memory.data()).Find(lane_) != member.entry) continue;
    if (member.entry->finished.load(std::memory_order_acquire) < step_) return false;
    if (of_lane && member.entry->ending.load(std::memory_order_acquire) == 0) return false;
  }
  NodeBoard(memory(self_).data()).Free(lane_);
  own_entry_ = nullptr;
  return true;
}

}  // namespace coordd
