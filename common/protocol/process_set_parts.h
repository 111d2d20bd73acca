// Process sets as messages tell them (ProcessSets in session.proto).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "coordd/v1/session.pb.h"

namespace coordd {

// Divides the sets into messages of at most `bytes` each, or of one set; there is one message at
// least.
std::vector<v1::ProcessSets> InParts(const v1::ProcessSets& sets, int64_t bytes);

// What a set takes of them.
int64_t PartBytes(const v1::ProcessSet& set);

// Appends the next part to the whole. INVALID_ARGUMENT: those are more than a job may have.
absl::Status AddPart(const v1::ProcessSets& part, v1::ProcessSets& whole);

// INVALID_ARGUMENT: numbers or ranks that are none, or not in order; names the set. `size`: of the
// job. The ranks of the first `checked` sets are not looked at again.
absl::Status CheckProcessSets(const v1::ProcessSets& sets, int32_t size, int32_t checked = 0);

}  // namespace coordd
