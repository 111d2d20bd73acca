#include "worker/backend_factory.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/host_backend.h"
#include "worker/loopback_backend.h"
#include "worker/shm_transport.h"

namespace coordd {

absl::StatusOr<std::unique_ptr<CollectiveBackend>> MakeBackend(const WorkerOptions& options,
                                                               const GroupLayout& layout) {
  if (layout.size() == 1) return std::make_unique<LoopbackBackend>();
  if (layout.num_nodes() > 1 || options.transport == TransportChoice::kUcx) {
    return absl::FailedPreconditionError(absl::StrCat(
        "UCX was not built into this worker, which needs it for ", layout.num_nodes(), " nodes"));
  }
  return std::make_unique<HostBackend>(std::make_unique<ShmTransport>());
}

}  // namespace coordd
