// What the ranks of `coordd-bench recovery` tell the bench while they run. Lies in memory that all
// have mapped; each rank writes its own slot.
#pragma once

#include <atomic>
#include <cstdint>

namespace coordd::bench {

inline constexpr int32_t kMaxRecoveryRanks = 64;
inline constexpr int32_t kMaxReasonChars = 512;

// Nanoseconds are of the monotonic clock.
struct alignas(64) RecoverySlot {
  std::atomic<int32_t> rank;            // in `generation`
  std::atomic<int64_t> generation;      // 0: it has not joined
  std::atomic<int64_t> began_ns;        // its first result in `generation`; 0: none yet
  std::atomic<int64_t> steps;           // whose results it has, all checked
  std::atomic<int64_t> fresh_ns;        // its last result under a name that nobody had seen before
  std::atomic<int64_t> longest_gap_ns;  // between two results in one generation
  std::atomic<int64_t> change_ns;  // from its last result in a generation to the first in the next
  std::atomic<int64_t> failed;     // collectives
  std::atomic<int64_t> steps_lost;
  std::atomic<int64_t> wrong;  // results
  // Why a collective has failed last; written before `failed` grows.
  char reason[kMaxReasonChars];
};

// Zeros are its first state.
struct RecoveryBoard {
  // Constant.
  int64_t elements = 0;         // of a step's reduction
  int32_t takes_newcomers = 0;  // whether the members let in who waits
  int32_t goes_on = 0;          // on_failure "continue": nothing fails when somebody is lost

  std::atomic<int32_t> stop;
  RecoverySlot slots[kMaxRecoveryRanks];
};

}  // namespace coordd::bench
