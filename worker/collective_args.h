// Checks that the arguments of a collective agree with each other. PURE.
#pragma once

#include "absl/status/status.h"
#include "common/types.h"
#include "worker/collective_backend.h"

namespace coordd {

// INVALID_ARGUMENT: names the kind, what was found and what was expected.
absl::Status ValidateArgs(const CollectiveArgs& args, Rank self, int32_t world_size);

}  // namespace coordd
