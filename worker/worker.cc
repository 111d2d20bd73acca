#include "worker/worker.h"

#include <utility>

#include "common/status_macros.h"
#include "worker/backend_factory.h"
#include "worker/grpc_coordinator_link.h"
#include "worker/grpc_store.h"
#include "worker/worker_impl.h"

namespace coordd {

absl::StatusOr<std::unique_ptr<Worker>> Worker::Start(const WorkerOptions& options, Clock& clock) {
  COORDD_RETURN_IF_ERROR(options.Validate());
  COORDD_ASSIGN_OR_RETURN(std::shared_ptr<grpc::Channel> channel,
                          OpenChannel(options.coordinator, options.tls));
  WorkerSeams seams;
  seams.make_link = [channel] { return NewGrpcCoordinatorLink(channel); };
  seams.store = NewGrpcStore(channel, {options.job, options.token}, clock);
  seams.make_backend = [options, &clock](const GroupLayout& layout) {
    return MakeBackend(options, layout, clock);
  };
  return StartWorker(options, std::move(seams), clock);
}

}  // namespace coordd
