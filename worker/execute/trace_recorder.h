// What this rank has executed and when, for timelines.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/protocol/types.h"

namespace coordd {

class BatchJob;

// When a batch came through the stations of the worker, by the worker's clock.
struct BatchTimes {
  absl::Time submitted;  // its first tensor
  absl::Time ready;      // planned, or all tensors of a schedule's batch are there
  absl::Time started;    // it was its turn: packing begins
  absl::Time launched;   // in the data plane
  absl::Time ended;      // by the data plane
  // Of one on a device, else absl::Time(): it was enqueued there, and all before it on the stream
  // had ended, so far as was seen.
  absl::Time enqueued, turn;
};

struct TraceRecord {
  LaneId lane;
  int64_t sequence = 0;
  CollectiveKind kind = CollectiveKind::kAllreduce;
  ProcessSetId process_set;
  int32_t tensors = 0;
  int64_t bytes = 0;
  bool begins_step = false;
  absl::string_view algorithm;  // a constant; empty: its backend has not said
  BatchTimes times;
  absl::Time done;            // unpacked
  std::array<char, 64> name;  // of its first tensor, with a null; a longer one ends in "..."
};

// Thread-safe. Two may record at the same time: coordd, for a trace of all ranks, and the program,
// for a file. When nobody does, a batch costs one load and a branch.
class TraceRecorder {
 public:
  enum class For { kCoordd, kFile };
  // 10 MiB. A step of a large model has some hundred batches.
  static constexpr size_t kRecordsMax = 1 << 16;

  bool on() const { return on_.load(std::memory_order_relaxed); }

  // The newest `records` batches that end from now on, at most kRecordsMax; what was recorded
  // before is forgotten.
  void Begin(For whom, size_t records);
  // A batch has ended, and its results are in their places.
  void Add(const BatchJob& batch, absl::Time done);

  struct Recorded {
    std::vector<TraceRecord> records;  // in the order of their ends
    int64_t dropped = 0;               // older ones, for which there was no room
  };
  // What has been recorded since Begin, or since the last Take. It goes on.
  Recorded Take(For whom);
  Recorded End(For whom);

 private:
  struct Ring {
    bool on = false;
    size_t room = 0;
    int64_t added = 0;  // since Take
    std::vector<TraceRecord> records;
  };
  static constexpr size_t kRings = 2;
  Recorded TakeLocked(Ring& ring) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Thread-safe by itself.
  std::atomic<bool> on_ = false;

  // Guarded by mu_, which is held for a copy of 200 bytes.
  Mutex mu_;
  std::array<Ring, kRings> rings_ ABSL_GUARDED_BY(mu_);
};

// "a/very/long/na..." in at most `room` - 1 bytes, never in the middle of a character.
void CopyName(absl::string_view name, std::array<char, 64>& to);

}  // namespace coordd
