// Checks that the arguments of a collective agree with each other. PURE.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/protocol/types.h"
#include "worker/interfaces/collective_backend.h"

namespace coordd {

// INVALID_ARGUMENT: names the kind, what was found and what was expected.
// `self` and `world_size` are those of the group.
absl::Status ValidateArgs(const CollectiveArgs& args, Rank self, int32_t world_size);

// Checks what CollectiveBackend::DefineGroup is given; whether the number is taken is not known
// here.
absl::Status ValidateGroup(ProcessSetId group, absl::Span<const Rank> ranks, Rank self,
                           int32_t world_size);

// Returns the bytes that a collective on mapped memory reads: the input, or a broadcast's buffer.
absl::Span<const std::byte> NodeInputOf(const CollectiveArgs& args);
// Returns the factor by which a result is scaled in passing, and says in *args.scaled whether it
// is.
double NodeScaleOf(const CollectiveArgs& args);

}  // namespace coordd
