// A lane among ranks of one node: where each member's memory is, and how far each has come.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/protocol/types.h"
#include "worker/node/node_board.h"

namespace coordd {

// Memory of a rank that all ranks of its node have mapped, each at its own address. It begins with
// the rank's board.
using NodeMemory = absl::Span<std::byte>;

// The bell at which a lane's thread waits, on all members alike: that of its rank, where one thread
// at a time runs many lanes, or the lane's own.
enum class LaneBell : uint8_t { kOfRank, kOfLane };

// One thread uses it. The memory of `members` outlives it.
class NodeLane {
 public:
  // The board says where a member's blocks are in its post.
  static constexpr int32_t kMaxMembers = 120;

  // REQUIRES: at most kMaxMembers; as NodeBoard::Claim.
  NodeLane(LaneId lane, const std::vector<NodeMemory>& members, int32_t self,
           LaneBell bell = LaneBell::kOfRank);

  // Whether the board had room for this rank's entry. If not, the lane is of no use.
  bool claimed() const { return own_entry_ != nullptr; }

  int32_t size() const { return static_cast<int32_t>(members_.size()); }
  int32_t self() const { return self_; }
  NodeMemory memory(int32_t member) const { return members_[static_cast<size_t>(member)].memory; }
  // Whether others can reach it in this rank's memory.
  bool IsMapped(absl::Span<const std::byte> bytes) const;

  // The last step of the collectives that have run.
  int64_t step() const { return step_; }

  // What this member says with `step`, the first of a collective: which one (node_call.h), and its
  // payload, to be filled before Reach(step). REQUIRES: all have reached
  // step - 1.
  void SayCall(int64_t step, uint64_t call) { own_entry_->posts[step % 2].call = call; }
  std::byte* Payload(int64_t step) { return own_entry_->posts[step % 2].payload; }
  // Says that this member has reached the step, and wakes those who sleep.
  void Reach(int64_t step) {
    own_entry_->posts[step % 2].step.store(step, std::memory_order_release);
    for (const Member& member : members_) {
      if (member.bell != nullptr) member.bell->Ring();
    }
  }
  bool HasReached(int32_t member, int64_t step) {
    const Member& m = members_[static_cast<size_t>(member)];
    return (m.entry != nullptr || Find(member)) && m.entry->reached(step) >= step;
  }
  // The first member that has not reached it; -1: all have.
  int32_t FirstBehind(int64_t step) {
    for (int32_t member = 0; member < size(); ++member) {
      if (member != self_ && !HasReached(member, step)) return member;
    }
    return -1;
  }
  // REQUIRES of both: HasReached(member, step), and this member has not said step + 1.
  uint64_t CallOf(int32_t member, int64_t step) const {
    return members_[static_cast<size_t>(member)].entry->posts[step % 2].call;
  }
  const std::byte* PayloadOf(int32_t member, int64_t step) const {
    return members_[static_cast<size_t>(member)].entry->posts[step % 2].payload;
  }
  // The collective that ends with `step` is over for this member. REQUIRES: every member has been
  // seen to have an entry, by FirstBehind.
  void Finish(int64_t step);
  // Told after Finish that the next post will probably have so many bytes. Its first line, which
  // the others may be looking at, stays with them.
  void ExpectPayload(int64_t size_bytes) const;

  // Why a member says no further step: a call of it has failed; it, or its rank, has left.
  enum class Ending : int32_t { kNone = 0, kFailed, kLeft };
  // This member says no further step.
  void GiveUp() { End(Ending::kFailed); }
  // Of a lane with a bell of its own all members have had an entry.
  Ending EndingOf(int32_t member) const;

  // Gives the entry of a lane on which nothing runs any more back, once nobody looks at it; returns
  // whether that has happened. To be called again until it has. Who shares a lane with a bell of
  // its own may still call something, in vain, until it has left, too.
  bool Release();

  // The bell at which this member's thread may wait for the others.
  Doorbell& bell() const { return *own_bell_; }

 private:
  struct Member {
    NodeMemory memory;
    BoardEntry* entry = nullptr;  // nullptr: not found yet
    Doorbell* bell = nullptr;     // nullptr: this rank's, or the lane's own is not found yet
  };

  // Whether the member has an entry by now.
  bool Find(int32_t member);
  void End(Ending ending) {
    own_entry_->ending.store(static_cast<int32_t>(ending), std::memory_order_release);
  }

  // Constant after construction.
  const LaneId lane_;
  const int32_t self_;
  const LaneBell bell_;

  // Touched by the owner's thread.
  std::vector<Member> members_;
  BoardEntry* own_entry_ = nullptr;
  Doorbell* own_bell_ = nullptr;
  int64_t step_ = 0;
};

}  // namespace coordd
