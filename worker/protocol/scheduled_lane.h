// A schedule as one rank executes it: which batch is next, what it waits for, where it ends.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/protocol/tensor_spec.h"
#include "common/protocol/types.h"
#include "worker/base/shared_spec.h"
#include "worker/protocol/worker_events.h"

namespace coordd {

// A tensor that the program has submitted and whose batch is not launched.
struct HeldTensor {
  TensorId id;  // 0: none
  SharedSpec spec;
  absl::Time submitted_at;
  absl::Time deadline;  // withdrawn: by when the schedule has to have been cut
  absl::Status withdrawn;
};

// How far the rank that is ahead of all may be: far more than a root that waits for nobody gets. A
// rank that has joined launches all of them at once.
inline constexpr int64_t kCutAheadMax = 1'000'000;

// PURE. Batches 1, 2, …, n, 1, 2, … are launched in this order on a lane of their own, each when
// all its tensors are here: every rank does the same, so none has to be asked. Positions count the
// batches from 1 without gaps: the n-th cycle goes on where the last one ended.
//
// docs/design/schedules.md says how it begins and ends.
class ScheduledLane {
 public:
  struct Batch {
    int64_t sequence = 0;
    absl::InlinedVector<HeldTensor, 1> tensors;  // in the order of the schedule; id 0: absent
  };

  // REQUIRES: at least one batch, none empty; no name twice.
  ScheduledLane(int64_t id, LaneId lane, ProcessSetId process_set,
                std::vector<std::vector<TensorSpec>> batches);

  int64_t id() const { return id_; }
  LaneId lane() const { return lane_; }
  ProcessSetId process_set() const { return process_set_; }

  // One for each name.
  size_t slots() const { return slots_.size(); }
  const TensorSpec& spec(size_t slot) const { return *slots_[slot].spec; }
  std::vector<const TensorSpec*> SpecsOf(size_t batch) const;
  // Whether it is the name of a group of the schedule: such a group comes whole, or breaks it.
  bool HasGroup(absl::string_view group) const;
  // All of its tensors are, or none.
  bool on_devices() const { return slots_.front().spec->memory != MemoryKind::kHost; }
  // By batch: whether no rank can end it before every rank has launched it.
  std::vector<bool> NeedingEveryRank() const;

  // Whether the tensor that the program submits next under this name belongs to the lane: until
  // the cut is known always, then up to the cut.
  bool Wants(size_t slot) const;
  // The slot behind the one that was filled last, if that is where this tensor belongs for sure: a
  // program that submits the same again needs no search by name.
  std::optional<size_t> NextSlotOf(const SharedSpec& spec) const;
  bool Holds(size_t slot) const { return ToInt(slots_[slot].held.id) != 0; }
  // FAILED_PRECONDITION: it is not what the schedule says; names both. It is held all the same.
  // REQUIRES: wanted and not held.
  absl::Status Take(size_t slot, HeldTensor tensor, absl::Time now);

  // The next batch, if it is complete and may be launched. It counts as launched.
  //
  // A group is launched as a whole, so the batches over which it is spread are a unit: the first
  // one waits until all of the unit is here, and is what the schedule says. To be called until
  // nothing comes; so a lane never stands within a unit, and no cut divides a group.
  std::optional<Batch> Next();
  // For a rank that has no more data: what is missing is absent. REQUIRES: cut.
  std::optional<Batch> NextWithAbsent();

  int64_t launched() const { return launched_; }
  int64_t batches_per_cycle() const { return static_cast<int64_t>(batches_.size()); }
  bool BeginsCycle(int64_t position) const {
    return position % batches_per_cycle() == 1 % batches_per_cycle();
  }
  // Nothing is launched until the cut is known; for ever, if this rank leaves.
  void Freeze() { frozen_ = true; }
  bool frozen() const { return frozen_; }
  // The lane ends behind `position`. Moves out what is held behind it, in order of submission.
  // INTERNAL: more has been launched, or kCutAheadMax less. FAILED_PRECONDITION: what is held
  // before it is not what the schedule says; names both. REQUIRES: frozen.
  absl::StatusOr<std::vector<HeldTensor>> Cut(int64_t position);
  bool cut() const { return cut_.has_value(); }
  bool finished() const { return cut_.has_value() && launched_ >= *cut_; }

  int64_t held() const { return held_; }
  std::vector<HeldTensor*> AllHeld();  // in order of submission
  const HeldTensor* Oldest() const;
  // No later than the first deadline of what is held.
  absl::Time earliest_deadline() const { return earliest_deadline_; }
  void FindEarliestDeadline();  // after deadlines have changed
  std::vector<HeldTensor> TakeAllHeld();
  // Since when something is held and nothing has come; InfiniteFuture: nothing is held.
  absl::Time waiting_since() const;
  // The names that the next batch, or its unit, lacks, at most `limit`.
  std::vector<std::string> Missing(size_t limit) const;

 private:
  struct Slot {
    SharedSpec spec;
    size_t batch = 0;
    HeldTensor held;
    bool differs = false;  // what is held is not what the schedule says
    SharedSpec known;      // has been found to be what the schedule says
  };
  struct Range {  // of slots_
    size_t begin = 0, end = 0;
    size_t unit = 0;
    bool begins_unit = true;
  };
  struct Unit {
    size_t size = 0;  // tensors
    size_t held = 0;
    size_t differing = 0;
  };
  void FormUnits();
  const Range& NextRange() const {
    return batches_[static_cast<size_t>(launched_) % batches_.size()];
  }
  int64_t NextPosition(size_t batch) const;
  absl::Status Differs(const Slot& slot) const;
  HeldTensor Release(Slot& slot);
  Batch Launch();

  const int64_t id_;
  const LaneId lane_;
  const ProcessSetId process_set_;
  std::vector<Slot> slots_;  // batch after batch
  std::vector<Range> batches_;
  std::vector<Unit> units_;
  absl::flat_hash_set<std::string> groups_;

  int64_t launched_ = 0;
  int64_t held_ = 0;
  size_t next_slot_ = 0;  // behind the one that was filled last
  bool frozen_ = false;
  std::optional<int64_t> cut_;
  absl::Time last_taken_ = absl::InfinitePast();
  absl::Time earliest_deadline_ = absl::InfiniteFuture();
};

}  // namespace coordd
