#include "worker/api/worker.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/duration_text.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/grpc/coordinator_failure.h"
#include "common/grpc/coordinator_probe.h"
#include "common/grpc/own_certificate.h"
#include "common/machine/build_info.h"
#include "worker/coordinator/auto_coordinator.h"
#include "worker/coordinator/coordinator_channels.h"
#include "worker/coordinator/grpc_coordinator_link.h"
#include "worker/coordinator/grpc_store.h"
#include "worker/gpu/cuda/device_runtime.h"
#include "worker/runtime/backend_factory.h"
#include "worker/runtime/worker_impl.h"

namespace coordd {

namespace {

// What answers does so at once; a mute port has to be told from a slow one.
constexpr absl::Duration kProbeWithin = absl::Seconds(2);
// It holds up the control thread.
constexpr absl::Duration kProbeAwayWithin = absl::Milliseconds(250);

// One process speaks for all: what launchers said is the same story on each rank.
void LogLaunch(const LaunchPlace& launch) {
  if (launch.rank > 0) return;
  for (const std::string& warning : launch.warnings) COORDD_LOG(kWarning, warning);
  if (launch.is_rank() || !launch.not_a_rank.empty()) {
    COORDD_LOG(kDebug, "launcher ", launch.launcher, " (", launch.title, "): ", launch.why,
               launch.size > 0 ? absl::StrCat("; ", launch.size, " in all") : "");
  }
  for (const std::string& note : launch.notes) COORDD_LOG(kDebug, note);
}

// `options` with a coordinator.
absl::StatusOr<WorkerOptions> Resolve(WorkerOptions options, Clock& clock) {
  LogLaunch(options.launch);
  if (!options.auto_coordinator) return options;
  COORDD_ASSIGN_OR_RETURN(
      CoordinatorAccess access,
      FindOrStartCoordinator(options, clock.Now() + options.join_timeout, clock));
  options.coordinator = std::move(access.address);
  options.tls = std::move(access.tls);
  if (options.token.empty()) options.token = std::move(access.token);
  // A job of one, when nobody has said how many there are.
  if (options.min_workers == 0 && options.max_workers == 0)
    options.min_workers = options.max_workers = 1;
  return options;
}

// Of certificates that do not fit gRPC says only that the connection has ended.
absl::Status MisfitOf(const WorkerOptions& options, Clock& clock) {
  COORDD_RETURN_IF_ERROR(CheckOwnCertificate(options.tls, TlsSide::kClient));
  if (!options.further_coordinators.empty()) return absl::OkStatus();
  absl::Status found = ProbeCoordinator(options.coordinator, options.tls, kProbeAwayWithin, clock);
  const bool is_final = absl::IsFailedPrecondition(found) || absl::IsUnauthenticated(found);
  return is_final ? found : absl::OkStatus();
}

void TellAway(const WorkerOptions& options, const CoordinatorAway& away, Clock& clock) {
  absl::Status why = MisfitOf(options, clock);
  if (why.ok()) why = CoordinatorFailure(/*probe=*/nullptr).Last(away.why);
  COORDD_LOG(kWarning, "coordd at ", options.coordinator.ToString(), " has been away for ",
             DurationText(away.since), ": ", why.message(),
             "; the ranks of this node ask again until it has been away for ",
             DurationText(away.patience));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Worker>> Worker::Start(const WorkerOptions& wanted, Clock& clock) {
  COORDD_RETURN_IF_ERROR(wanted.Validate());
  COORDD_ASSIGN_OR_RETURN(const WorkerOptions options, Resolve(wanted, clock));
  std::vector<HostPort> addresses = {options.coordinator};
  addresses.insert(addresses.end(), options.further_coordinators.begin(),
                   options.further_coordinators.end());
  COORDD_ASSIGN_OR_RETURN(
      const std::shared_ptr<CoordinatorChannels> channels,
      CoordinatorChannels::Open(std::move(addresses), options.tls, options.node_session));
  WorkerSeams seams;
  seams.make_link = [channels] { return channels->NewLink(); };
  if (options.further_coordinators.empty()) {
    seams.probe_coordinator = [options, &clock] {
      return ProbeCoordinator(options.coordinator, options.tls, kProbeWithin, clock);
    };
  }
  seams.coordinator_away = [options, &clock](const CoordinatorAway& away) {
    TellAway(options, away, clock);
  };
  seams.store_record = std::make_shared<StoreRecord>();
  seams.store = NewGrpcStore([channels] { return channels->Current(); },
                             {options.job, options.token}, clock, seams.store_record);
  seams.make_backend = [options, &clock,
                        refused = seams.connections_refused](const GroupLayout& layout) {
    return MakeBackend(options, layout, clock, refused);
  };
  if (IsBuiltIn("CUDA")) {
    seams.gpus.open_devices = []() -> absl::StatusOr<std::shared_ptr<DeviceRuntime>> {
      return DeviceRuntime::Open();
    };
  }
  if (IsBuiltIn("NCCL")) {
    seams.gpus.open_nccl = [environment =
                                options.nccl_environment](std::shared_ptr<DeviceRuntime> devices) {
      return NcclRuntime::Open(environment, std::move(devices));
    };
  }
  return StartWorker(options, std::move(seams), clock);
}

}  // namespace coordd
