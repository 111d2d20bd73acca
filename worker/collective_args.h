// Checks that the arguments of a collective agree with each other. PURE.
#pragma once

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/types.h"
#include "worker/collective_backend.h"

namespace coordd {

// INVALID_ARGUMENT: names the kind, what was found and what was expected.
// `self` and `world_size` are those of the group.
absl::Status ValidateArgs(const CollectiveArgs& args, Rank self, int32_t world_size);

// As CollectiveBackend::DefineGroup; whether the number is taken is not known here.
absl::Status ValidateGroup(ProcessSetId group, absl::Span<const Rank> ranks, Rank self,
                           int32_t world_size);

}  // namespace coordd
