// A lane on mapped memory that belongs to a thread of the program, not to the backend's owner.
#pragma once

#include <cstddef>
#include <memory>

#include "absl/types/span.h"
#include "worker/node/node_arena.h"
#include "worker/node/node_lane.h"
#include "worker/node/node_run.h"

namespace coordd {

// One thread at a time uses it. Its memory stays mapped when the backend that has opened it is
// gone.
struct MappedLane {
  std::shared_ptr<NodeArena> arena;  // of which the rest is
  std::unique_ptr<NodeLane> node;
  absl::Span<std::byte> staging;  // for any collective
  NodeRunOptions options;
};

}  // namespace coordd
