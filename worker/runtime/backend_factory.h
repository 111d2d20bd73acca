// Chooses the backend of a generation. (io)
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "worker/api/worker_options.h"
#include "worker/interfaces/collective_backend.h"
#include "worker/interfaces/group_layout.h"

namespace coordd {

// Not connected yet. A job of one rank needs no data plane; otherwise memory that the ranks of a
// node map from each other, if all of them can, else messages through shared memory, and TCP
// or UCX between nodes (transport_factory.h). FAILED_PRECONDITION: what was asked for is not in
// this build, or cannot reach every rank. `clock` outlives it. `refused`, if any, counts
// connections to this rank that were not believed.
absl::StatusOr<std::unique_ptr<CollectiveBackend>> MakeBackend(
    const WorkerOptions& options, const GroupLayout& layout, Clock& clock,
    std::shared_ptr<std::atomic<int64_t>> refused = nullptr);

}  // namespace coordd
