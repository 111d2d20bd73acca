// What a rank that comes back says of its generation: how far it is, and what others may lack. PURE
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "coordd/v1/session.pb.h"
#include "worker/protocol/worker_generation.h"

namespace coordd {

// In messages of up to kMaxReportBytes each. `answered_requests`: for process sets, up to this one.
std::vector<v1::ResumeReport> ResumeReportsOf(const WorkerGeneration& generation,
                                              int64_t answered_requests);

// Of a generation that is over: what the rank had heard, and had not, is of no use any more.
v1::ResumeReport OverReport(const absl::Status& why, const std::vector<v1::Departure>& departures);

}  // namespace coordd
