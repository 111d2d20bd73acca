// Batches of a rank as events of a timeline that Perfetto and Chrome open (Trace Event Format,
// JSON). PURE
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordd/v1/trace.pb.h"

namespace coordd {

// When a batch was where, in nanoseconds of the clock that its times are given in.
struct BatchPhases {
  explicit BatchPhases(const v1::TraceBatch& batch)
      : submitted(batch.submitted_ns()),
        ready(submitted + batch.negotiation_ns()),
        started(ready + batch.queue_ns()),
        launched(started + batch.pack_ns()),
        ended(launched + batch.exchange_ns()),
        done(ended + batch.unpack_ns()) {}

  // Of one on a device: when it was enqueued there, and the earliest that the device can have
  // begun.
  int64_t EnqueuedAt(const v1::TraceBatch& batch) const {
    return std::min(launched + batch.enqueue_ns(), ended);
  }
  int64_t TurnAt(const v1::TraceBatch& batch) const {
    return std::min(EnqueuedAt(batch) + batch.device_queue_ns(), ended);
  }

  int64_t submitted, ready, started, launched, ended, done;
};

// The name of a phase: "allreduce" becomes "ALLREDUCE".
std::string PhaseName(absl::string_view prefix, v1::CollectiveKind kind);

// One for each rank: a process of the timeline. A lane is a track, or several when batches of it
// overlap in time without one holding the other.
//
// Phases have Horovod's names where they mean the same: NEGOTIATE_ALLREDUCE (a batch of a schedule
// is not negotiated: WAIT_FOR_OTHER_TENSOR_DATA), QUEUE, MEMCPY_IN_FUSION_BUFFER, HOST_ALLREDUCE by
// the backend's name, MEMCPY_OUT_FUSION_BUFFER. WAIT_FOR_OTHER_RANKS is the part of the exchange in
// which others were not there.
//
// What NCCL carries is on the track "device", too: from when all before it on the stream had ended,
// to its end. With its phase stand when it was enqueued and begun.
class ChromeTrace {
 public:
  // `origin_ns`: the moment that is 0 in the timeline. `mark_steps`: an event CYCLE_START where a
  // repetition of a schedule begins, and where batches are negotiated after none was under way.
  ChromeTrace(int32_t rank, int64_t origin_ns, bool mark_steps)
      : rank_(rank), origin_ns_(origin_ns), mark_steps_(mark_steps) {}

  // Each of these appends events, each followed by ",\n".
  void AddProcess(absl::string_view name, std::string* out) const;
  // The timeline's origin as Horovod tells it, where that is a time since 1970.
  void AddOrigin(std::string* out) const;
  // Batches in the order of their ends. `offset_ns`: of the timeline's clock, beyond theirs.
  // `wait_ns`: how long a batch waited for other ranks in its exchange; 0: not known.
  void AddBatches(const v1::TraceBatches& batches, int64_t offset_ns,
                  absl::FunctionRef<int64_t(const v1::TraceBatch&)> wait_ns, std::string* out);

 private:
  struct Track {
    int32_t number = 0;
    int64_t free_at_ns = 0;
  };
  static constexpr size_t kTracksMax = 64;  // of a lane: no more batches than that overlap

  static constexpr int32_t kDeviceLane = -1;  // which no batch has

  bool BeginsCycle(const v1::TraceBatch& batch, const BatchPhases& at);
  int32_t TrackOf(int32_t lane, int64_t from_ns, int64_t to_ns, std::string* out);
  void AddSlice(absl::string_view name, int32_t track, int64_t from_ns, int64_t to_ns,
                absl::string_view args, std::string* out) const;
  void AddMetadata(absl::string_view what, int32_t track, absl::string_view value,
                   std::string* out) const;

  const int32_t rank_;
  const int64_t origin_ns_;
  const bool mark_steps_;
  std::map<int32_t, std::vector<Track>> lanes_;
  int32_t last_track_ = 0;
  int64_t cycle_end_ns_ = 0;  // of negotiated batches that overlap in time
};

// The text as a string of JSON, with its quotes.
std::string JsonString(absl::string_view text);

}  // namespace coordd
