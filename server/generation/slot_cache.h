// coordd's side of the slots of one process set (docs/design/control.md, "Gear 2: slots").
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/protocol/slot_dictionary.h"
#include "common/protocol/tensor_spec.h"
#include "server/generation/kept_names.h"
#include "server/generation/readiness_table.h"

namespace coordd {

// PURE, not thread-safe. One for each process set of a generation.
//
// With capacity C the C newest slots are in use: plans name no other. Members forget slot n - C as
// they learn slot n, at one point of the stream for all. What they send may be older, and mean an
// older slot: so coordd keeps what anybody may still mean, and gives nothing new while that would
// be more than 2 C. So a slot means what its sender means by it, whatever is under way.
class SlotCache {
 public:
  // `capacity` 0: no slot is ever given. `table`, of the same set, outlives it.
  // `names`: counts what is kept.
  SlotCache(int64_t capacity, ReadinessTable& table, KeptNames& names);
  ~SlotCache();
  SlotCache(const SlotCache&) = delete;
  SlotCache& operator=(const SlotCache&) = delete;

  // The member at this position has heard of slots up to `known`. False: it cannot have.
  bool Heard(int32_t member, int64_t known);
  bool HasHeard(int32_t member, int64_t known) const {  // as before: Heard would change nothing
    return known_[static_cast<size_t>(member)] == known;
  }
  bool AllHaveHeard(int64_t known) const {
    return least_known_ == known && with_least_ == known_.size();
  }
  // What a member means by it; nullptr: nothing that it could mean.
  ReadinessTable::Known* Find(int64_t slot);
  // The slot by which a plan may name the tensor, such that reports of it mean this spec; 0: there
  // is none.
  int64_t SlotOf(const ReadyTensor& tensor);
  // Gives it one, of which the members must be told in the next message. 0: it has none, since
  // somebody has not heard of others for too long, or the names of all are too much to keep.
  int64_t Give(const ReadyTensor& tensor);

  size_t size() const { return slots_.size(); }
  int64_t given() const { return slots_.newest(); }
  // That were in use, and had to make room.
  int64_t forgotten() const { return std::max<int64_t>(0, given() - capacity_); }

 private:
  void ForgetUpTo(int64_t slot);
  void ForgetUnused();

  const int64_t capacity_;
  ReadinessTable& table_;
  KeptNames::Hold kept_;
  SlotDictionary<ReadinessTable::Known> slots_;
  std::vector<int64_t> known_;  // by member
  int64_t least_known_ = 0;
  size_t with_least_ = 0;  // how many members know no more
};

}  // namespace coordd
