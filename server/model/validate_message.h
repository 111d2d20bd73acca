// Bounds of what workers send, checked before anything reaches the state. INVALID_ARGUMENT names
// the field, what was found and what was expected; it ends the session.
#pragma once

#include <google/protobuf/message.h>

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordd/v1/admin.pb.h"
#include "coordd/v1/session.pb.h"

namespace coordd {

// Checks all of a Join but what depends on other workers. Protocol version and resume are not
// judged here.
absl::Status ValidateJoin(const v1::Join& join);
absl::Status ValidateHeartbeat(const v1::Heartbeat& heartbeat);
absl::Status ValidateTensorsReady(const v1::TensorsReady& ready);
absl::Status ValidateTensorsWithdrawn(const v1::TensorsWithdrawn& withdrawn);
// Checks a request for a process set. Which ranks there are is judged when all have asked
// (process_sets.h).
absl::Status ValidateProcessSetRequest(const v1::ProcessSetRequest& request);
absl::Status ValidateCollectiveFailed(const v1::CollectiveFailed& failed);
absl::Status ValidateScheduleBreak(const v1::ScheduleBreak& message);
absl::Status ValidateTraceChunk(const v1::TraceChunk& chunk);
absl::Status ValidateRecoveryReport(const v1::RecoveryReport& report);
absl::Status ValidateLeave(const v1::Leave& leave);
absl::Status ValidateDrainRequest(const v1::DrainRequest& request);
// Checks that it can be told which job, workers and time are meant; whether there are such is
// judged elsewhere.
absl::Status ValidateDismiss(const v1::DismissRequest& request);

absl::Status ValidateJobName(absl::string_view name);

// The bytes of memory that a message of `bytes` on the wire takes. INVALID_ARGUMENT: so much more
// than any that says something: it has thousands of parts with nothing in them, of which each is
// two bytes on the wire.
absl::StatusOr<size_t> CheckSpace(const google::protobuf::Message& message, size_t bytes);

// The first `bytes` of `text` at most, never half a UTF-8 character.
std::string Truncated(absl::string_view text, size_t bytes);

}  // namespace coordd
