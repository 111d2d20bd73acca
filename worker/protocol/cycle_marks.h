// How long a schedule's collectives took on this rank, in sums that ranks can compare.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "absl/time/time.h"

namespace coordd {

// PURE. All ranks of a collective end it at about the same time, so whoever spent less time in it
// came later by as much: no clocks have to be compared. That holds for sums over the same
// collectives, therefore they are cut at *marks*: numbers of cycles of the schedule that are
// multiples of a power of two. Ranks choose that power themselves, so that few marks fall between
// two heartbeats; those with the larger one have marks in common with all others.
//
// Not thread-safe: it goes with WorkerState.
class CycleMarks {
 public:
  // Between two heartbeats: so many are enough to see who is late now, and cost 80 bytes.
  static constexpr size_t kMarksMax = 8;

  struct Mark {
    int64_t cycles = 0;   // that are complete, and all before them
    absl::Duration busy;  // in their collectives, from all tensors there to the end
  };

  // `counts`: which of a cycle's batches need every rank; the others say nothing about who is late.
  explicit CycleMarks(std::vector<bool> counts);

  // The batch at this position of the lane (1, 2, 3, …) has ended. In any order, each once.
  void Ended(int64_t position, absl::Duration took);
  // Complete cycles, without a gap.
  int64_t cycles() const { return total_.cycles; }
  // The marks since the last call, in order.
  std::vector<Mark> Take();

 private:
  struct Cycle {
    size_t missing = 0;  // batches that have not ended
    absl::Duration busy;
  };

  const std::vector<bool> counts_;
  const bool any_counts_;
  std::deque<Cycle> open_;  // behind the last complete one; no more than are in flight
  Mark total_;
  int64_t stride_ = 1;  // between marks
  std::vector<Mark> marks_;
};

}  // namespace coordd
