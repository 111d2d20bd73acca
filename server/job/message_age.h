// Whether what a worker says is about the generation that it is in. PURE
#pragma once

#include "absl/status/statusor.h"
#include "common/protocol/types.h"
#include "coordd/v1/session.pb.h"
#include "server/job/current_generation.h"

namespace coordd {

// Of whoever says it, and of its job.
struct MessageAge {
  Epoch epoch = {};            // of this coordd
  Generation generation = {};  // of the sender; 0: it waits
  Generation previous = {};    // of a survivor: the one that it was in
  Damage damage = Damage::kNone;
  bool follows = false;  // another generation is to follow: survivors report
};

// False: it is of another generation, or of what was under way when this one ended, and is dropped.
// INVALID_ARGUMENT: it breaks the protocol.
absl::StatusOr<bool> IsTimely(const v1::WorkerMessage& message, const MessageAge& age);

}  // namespace coordd
