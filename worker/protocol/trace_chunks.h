// What was recorded, as it travels. PURE
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "coordd/v1/trace.pb.h"
#include "worker/execute/trace_recorder.h"

namespace coordd {

// What a batch takes in a chunk, about, without its name.
inline constexpr int64_t kTraceRecordBytes = 48;

v1::TraceBatches ToTraceBatches(absl::Span<const TraceRecord> records, absl::string_view backend);

// The repetitions behind `from_cycle`, up to `until_cycle`, of the schedule's lane, which has
// `batches_per_cycle`; of other lanes what was ready in that time.
std::vector<TraceRecord> Within(absl::Span<const TraceRecord> records, LaneId lane,
                                int64_t batches_per_cycle, int64_t from_cycle, int64_t until_cycle);

struct TraceClock {
  bool known = false;
  absl::Duration offset;  // coordd's minus ours
  absl::Duration error;
};
// Serialised TraceBatches, oldest first, none larger than session.proto allows and no more than
// `bytes_max` in all: the newest records. `left_out`: how many are not in.
std::vector<std::string> ToTraceChunks(absl::Span<const TraceRecord> records,
                                       absl::string_view backend, const TraceClock& clock,
                                       int64_t bytes_max, int64_t& left_out);

}  // namespace coordd
