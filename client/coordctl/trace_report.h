// What a trace of a job says: where its steps went, and who was late. PURE
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordd/v1/admin.pb.h"

namespace coordd {

// What a rank does at a moment, the first of these that is true of any of its batches.
enum class TracePhase { kTransfer, kPack, kWait, kQueue, kNegotiate, kProgram };
inline constexpr size_t kTracePhases = 6;
// "transfer", "pack", ...: keys of the JSON.
absl::string_view Name(TracePhase phase);

struct RankSummary {
  int32_t rank = 0;
  std::string hostname;
  int32_t pid = 0;
  std::string missing;
  int64_t batches = 0;
  int64_t dropped = 0;
  int64_t steps = 0;                               // complete ones
  double step_ms = 0;                              // mean; 0: not known
  std::array<double, kTracePhases> phase_ms = {};  // mean of a step, or in all without steps
  int64_t collectives = 0;                 // that need every rank, and that all traced ranks have
  int64_t last_in = 0;                     // of those: came last, clearly
  double lag_ms_mean = 0, lag_ms_max = 0;  // behind the first, over all of them
  double clock_error_us = -1;              // negative: not known
};

// How long coordd may take to answer: until the recording must have ended, and a minute to collect.
absl::Duration TraceTimeout(const v1::TraceRequest& request);

struct TraceSummary {
  std::string job;
  int64_t generation = 0;
  int32_t size = 0;
  int32_t steps = 0;  // asked for; 0: by time
  double seconds = 0;
  std::string note;
  std::vector<RankSummary> ranks;
  int32_t latest_rank = -1;  // came last most often, if that was often; -1: nobody
};

TraceSummary Summarize(const v1::TraceReply& reply);
// Whether no rank has executed anything while it was recorded, so that there is nothing to show.
bool NothingExecuted(const TraceSummary& summary);
// What is said when nothing was executed. `stalls`: what the job waits for (StallsText); empty when
// nothing is known.
std::string NothingText(const TraceSummary& summary, absl::string_view stalls);
// The summary for people; `file`: where the timeline is.
std::string ToText(const TraceSummary& summary, absl::string_view file);
std::string ToJson(const TraceSummary& summary, absl::string_view file);

// The timeline, in the JSON that Perfetto opens: one process for each rank, on coordd's clock.
std::string TimelineOf(const v1::TraceReply& reply);

}  // namespace coordd
