// Statuses, versions, and a worker's life.
#include <cmath>
#include <csignal>
#include <cstring>
#include <exception>
#include <functional>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/c_api/c_api_internal.h"
#include "common/base/clock.h"
#include "common/base/environment.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/base/version.h"
#include "common/grpc/grpc_log.h"
#include "common/launch/launch_facts.h"
#include "common/machine/build_info.h"
#include "worker/api/options_from_environment.h"
#include "worker/base/fork_guard.h"
#include "worker/execute/worker_errors.h"

namespace coordd {
namespace {

// Bounds a worker that is destroyed without having been shut down.
constexpr absl::Duration kDestroyTimeout = absl::Seconds(10);

std::string& LastError() {
  thread_local std::string text;
  return text;
}

// Options that have a variable go where the variable would: one parser, one set of messages.
Environment Overlay(const coordd_options_t& options, Environment environment) {
  const std::pair<const char*, const char*> texts[] = {
      {"COORDD_ADDR", options.coordinator},      {"COORDD_JOB_ID", options.job},
      {"COORDD_TOKEN_FILE", options.token_file}, {"COORDD_TLS_CA", options.tls_ca},
      {"COORDD_TLS_CERT", options.tls_cert},     {"COORDD_TLS_KEY", options.tls_key},
      {"COORDD_NODE_ID", options.node_id},       {"COORDD_TOPOLOGY", options.topology},
      {"COORDD_METRICS", options.metrics},       {"COORDD_TRANSPORT", options.transport},
      {"COORDD_LAUNCHER", options.launcher},     {"COORDD_PORT_RANGE", options.port_range},
      {"COORDD_ON_FAILURE", options.on_failure},
  };
  for (const auto& [name, value] : texts) {
    if (value != nullptr && *value != '\0') environment[name] = value;
  }
  if (options.token != nullptr && *options.token != '\0') environment.erase("COORDD_TOKEN_FILE");
  return environment;
}

// What gRPC has is shared with the parent of a fork: a worker in the child would end the parent's.
absl::Status CheckNoFork() {
  static const ForkGuard first_start;
  return first_start.Check();
}

absl::StatusOr<WorkerOptions> ToWorkerOptions(const coordd_options_t& options) {
  const Environment environment =
      Overlay(options, options.ignore_environment != 0 ? Environment() : ReadEnvironment());
  RouteGrpcLogUnlessWanted(environment);
  COORDD_ASSIGN_OR_RETURN(WorkerOptions result, WorkerOptionsFrom(environment, ThisLaunchFacts()));
  // Who looks at no variable gets no coordd unasked.
  const bool named = options.coordinator != nullptr && *options.coordinator != '\0';
  if (options.ignore_environment != 0 && !named) result.auto_coordinator = false;
  if (options.token != nullptr && *options.token != '\0') result.token = options.token;
  if (options.worker_id != nullptr) result.worker_id = options.worker_id;
  if (options.min_workers != 0) result.min_workers = options.min_workers;
  if (options.max_workers != 0) result.max_workers = options.max_workers;
  if (options.stack_signal < 0 || options.stack_signal > SIGRTMAX) {
    return absl::InvalidArgumentError(absl::StrCat("stack_signal is ", options.stack_signal,
                                                   ", expected a signal, 1 to ", SIGRTMAX,
                                                   ", or 0 for none"));
  }
  if (options.stack_signal != 0) result.stack = {options.stack_signal, options.stack_fd};
  if (options.has_launcher_rank != 0) {
    result.launcher_rank = options.launcher_rank;
    result.launcher_local_rank = options.launcher_local_rank;
  }
  if (options.join_timeout_seconds != 0) {
    COORDD_ASSIGN_OR_RETURN(result.join_timeout, TimeoutFromSeconds(options.join_timeout_seconds));
  }
  if (options.settling_window_seconds != 0) {
    COORDD_ASSIGN_OR_RETURN(result.settling_window,
                            TimeoutFromSeconds(options.settling_window_seconds));
  }
  if (options.collective_timeout_seconds != 0) {
    COORDD_ASSIGN_OR_RETURN(result.collective_timeout,
                            TimeoutFromSeconds(options.collective_timeout_seconds));
  }
  return result;
}

coordd_launch_t ToLaunch(const WorkerOptions& options, std::string* texts) {
  coordd_launch_t launch = COORDD_LAUNCH_INIT;
  // Two texts in one: the second begins behind the first one's zero.
  *texts = absl::StrCat(options.launch.launcher, absl::string_view("\0", 1), options.job);
  launch.launcher = texts->c_str();
  launch.job = launch.launcher + options.launch.launcher.size() + 1;
  launch.rank = options.launcher_rank;
  launch.size = options.min_workers > 0 && options.min_workers == options.max_workers
                    ? options.min_workers
                    : options.launch.size;
  launch.local_rank = options.launcher_local_rank;
  launch.local_size = options.launch.local_size;
  return launch;
}

coordd_placement_t ToPlacement(const Placement& p) {
  return {sizeof(coordd_placement_t),
          ToInt(p.generation),
          p.rank,
          p.size,
          p.local_rank,
          p.local_size,
          p.cross_rank,
          p.cross_size,
          p.nodes,
          p.homogeneous};
}

}  // namespace

coordd_status_t Fail(const absl::Status& status) {
  LastError() = std::string(status.message());
  if (IsGenerationChanged(status)) return COORDD_GENERATION_CHANGED;
  return static_cast<coordd_status_t>(status.code());
}

absl::StatusOr<absl::Duration> TimeoutFromSeconds(double seconds) {
  if (std::isnan(seconds) || seconds < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a timeout of ", seconds, " seconds: expected 0 or more"));
  }
  return absl::Seconds(seconds);
}

absl::Status NullArgument(absl::string_view name) {
  return absl::InvalidArgumentError(absl::StrCat(name, " is NULL"));
}

absl::Status ForkedChild(absl::string_view what) {
  return absl::FailedPreconditionError(absl::StrCat(
      what, " belongs to the parent process: after fork() only the parent can use it"));
}

}  // namespace coordd

using coordd::AtBorder;

extern "C" {

uint32_t coordd_abi_version(void) { return COORDD_ABI_VERSION; }
const char* coordd_version(void) { return coordd::kVersion; }

const char* coordd_status_name(coordd_status_t status) {
  static constexpr const char* kNames[] = {"OK",
                                           "CANCELLED",
                                           "UNKNOWN",
                                           "INVALID_ARGUMENT",
                                           "DEADLINE_EXCEEDED",
                                           "NOT_FOUND",
                                           "ALREADY_EXISTS",
                                           "PERMISSION_DENIED",
                                           "RESOURCE_EXHAUSTED",
                                           "FAILED_PRECONDITION",
                                           "ABORTED",
                                           "OUT_OF_RANGE",
                                           "UNIMPLEMENTED",
                                           "INTERNAL",
                                           "UNAVAILABLE",
                                           "DATA_LOSS",
                                           "UNAUTHENTICATED"};
  if (status == COORDD_GENERATION_CHANGED) return "GENERATION_CHANGED";
  if (status < 0 || status > COORDD_UNAUTHENTICATED) return "a status without a name";
  return kNames[status];
}

const char* coordd_last_error(void) { return coordd::LastError().c_str(); }

coordd_status_t coordd_launch_place(const coordd_options_t* options, coordd_launch_t* launch) {
  thread_local std::string texts;
  return AtBorder([&]() -> absl::Status {
    COORDD_RETURN_IF_ERROR(coordd::CheckNoFork());
    COORDD_ASSIGN_OR_RETURN(const coordd_options_t known, coordd::CopyIn(options, "options"));
    COORDD_ASSIGN_OR_RETURN(const coordd::WorkerOptions parsed, coordd::ToWorkerOptions(known));
    return coordd::CopyOut(coordd::ToLaunch(parsed, &texts), launch, "launch");
  });
}

coordd_status_t coordd_worker_start(const coordd_options_t* options, coordd_worker_t** worker) {
  return AtBorder([&]() -> absl::Status {
    if (worker == nullptr) return coordd::NullArgument("worker");
    *worker = nullptr;
    COORDD_ASSIGN_OR_RETURN(const coordd_options_t known, coordd::CopyIn(options, "options"));
    COORDD_ASSIGN_OR_RETURN(const coordd::WorkerOptions parsed, coordd::ToWorkerOptions(known));
    COORDD_RETURN_IF_ERROR(parsed.Validate());
    if (known.ignore_environment == 0) coordd::SetLogLevel(parsed.log_level);
    COORDD_ASSIGN_OR_RETURN(std::unique_ptr<coordd::Worker> started, coordd::Worker::Start(parsed));
    *worker = new coordd_worker(std::move(started));
    return absl::OkStatus();
  });
}

coordd_status_t coordd_worker_shutdown(coordd_worker_t* worker, double timeout_seconds) {
  return AtBorder([&]() -> absl::Status {
    if (worker == nullptr) return coordd::NullArgument("worker");
    COORDD_ASSIGN_OR_RETURN(const absl::Duration timeout,
                            coordd::TimeoutFromSeconds(timeout_seconds));
    return worker->worker->Shutdown(timeout);
  });
}

void coordd_worker_destroy(coordd_worker_t* worker) {
  if (worker == nullptr) return;
  AtBorder([&]() -> absl::Status {
    coordd::ForgetHeldGoodbye(worker->worker.get());
    const absl::Status ignored =
        std::uncaught_exceptions() > 0
            ? worker->worker->Fail("a C++ exception has left the scope of its worker",
                                   coordd::kDestroyTimeout)
            : worker->worker->Shutdown(coordd::kDestroyTimeout);
    delete worker;
    return absl::OkStatus();
  });
}

coordd_status_t coordd_worker_placement(const coordd_worker_t* worker,
                                        coordd_placement_t* placement) {
  return AtBorder([&]() -> absl::Status {
    if (worker == nullptr) return coordd::NullArgument("worker");
    return coordd::CopyOut(coordd::ToPlacement(worker->worker->placement()), placement,
                           "placement");
  });
}

namespace {

coordd_status_t NextPlacement(
    coordd_worker_t* worker, double timeout_seconds, coordd_placement_t* placement,
    const std::function<absl::StatusOr<coordd::Placement>(coordd::Worker&, absl::Time)>& wait) {
  return AtBorder([&]() -> absl::Status {
    if (worker == nullptr) return coordd::NullArgument("worker");
    COORDD_ASSIGN_OR_RETURN(const absl::Duration timeout,
                            coordd::TimeoutFromSeconds(timeout_seconds));
    COORDD_ASSIGN_OR_RETURN(const coordd::Placement next,
                            wait(*worker->worker, coordd::Clock::Real().Now() + timeout));
    if (placement == nullptr) return absl::OkStatus();
    return coordd::CopyOut(coordd::ToPlacement(next), placement, "placement");
  });
}

}  // namespace

coordd_status_t coordd_worker_await_generation(coordd_worker_t* worker, double timeout_seconds,
                                               coordd_placement_t* placement) {
  return NextPlacement(worker, timeout_seconds, placement, &coordd::Worker::AwaitGeneration);
}

coordd_status_t coordd_worker_on_generation(coordd_worker_t* worker, coordd_entered_t entered,
                                            void* user) {
  return AtBorder([&]() -> absl::Status {
    if (worker == nullptr) return coordd::NullArgument("worker");
    if (entered == nullptr) {
      worker->worker->OnGeneration(nullptr);
      return absl::OkStatus();
    }
    worker->worker->OnGeneration([entered, user](const coordd::Placement& placement) {
      const coordd_placement_t place = coordd::ToPlacement(placement);
      entered(user, &place);
    });
    return absl::OkStatus();
  });
}

int32_t coordd_worker_newcomers(const coordd_worker_t* worker) {
  return worker == nullptr ? 0 : worker->worker->newcomers();
}

coordd_status_t coordd_worker_change_members(coordd_worker_t* worker, double timeout_seconds,
                                             coordd_placement_t* placement) {
  return coordd_worker_change_members_of(worker, 0, timeout_seconds, placement);
}

coordd_status_t coordd_worker_change_members_of(coordd_worker_t* worker, int64_t generation,
                                                double timeout_seconds,
                                                coordd_placement_t* placement) {
  return NextPlacement(worker, timeout_seconds, placement,
                       [generation](coordd::Worker& member, absl::Time deadline) {
                         return member.ChangeMembers(coordd::Generation{generation}, deadline);
                       });
}

double coordd_worker_drain_seconds(const coordd_worker_t* worker) {
  if (worker == nullptr) return -1;
  const std::optional<absl::Duration> left = worker->worker->drain_left();
  return left.has_value() ? absl::ToDoubleSeconds(*left) : -1;
}

coordd_status_t coordd_worker_ask_to_leave(coordd_worker_t* worker, double grace_seconds,
                                           const char* reason) {
  return AtBorder([&]() -> absl::Status {
    if (worker == nullptr) return coordd::NullArgument("worker");
    COORDD_ASSIGN_OR_RETURN(const absl::Duration grace, coordd::TimeoutFromSeconds(grace_seconds));
    return worker->worker->AskToLeave(grace, reason == nullptr ? "" : reason);
  });
}

int32_t coordd_rank(const coordd_worker_t* worker) {
  return worker == nullptr ? -1 : worker->worker->placement().rank;
}
int32_t coordd_size(const coordd_worker_t* worker) {
  return worker == nullptr ? -1 : worker->worker->placement().size;
}
int32_t coordd_local_rank(const coordd_worker_t* worker) {
  return worker == nullptr ? -1 : worker->worker->placement().local_rank;
}
int32_t coordd_local_size(const coordd_worker_t* worker) {
  return worker == nullptr ? -1 : worker->worker->placement().local_size;
}
int32_t coordd_cross_rank(const coordd_worker_t* worker) {
  return worker == nullptr ? -1 : worker->worker->placement().cross_rank;
}
int32_t coordd_cross_size(const coordd_worker_t* worker) {
  return worker == nullptr ? -1 : worker->worker->placement().cross_size;
}

coordd_status_t coordd_worker_status(const coordd_worker_t* worker) {
  return AtBorder([&]() -> absl::Status {
    if (worker == nullptr) return coordd::NullArgument("worker");
    return worker->worker->status();
  });
}

const char* coordd_worker_metrics_address(const coordd_worker_t* worker) {
  return worker == nullptr ? "" : worker->metrics_address.c_str();
}

coordd_status_t coordd_worker_host_address(const coordd_worker_t* worker, char* address,
                                           size_t capacity) {
  return AtBorder([&]() -> absl::Status {
    if (worker == nullptr) return coordd::NullArgument("worker");
    if (address == nullptr) return coordd::NullArgument("address");
    const std::string found = worker->worker->host_address();
    if (found.size() >= capacity) {
      return absl::InvalidArgumentError(absl::StrCat("capacity is ", capacity,
                                                     ", expected COORDD_HOST_ADDRESS_BYTES, ",
                                                     COORDD_HOST_ADDRESS_BYTES));
    }
    std::memcpy(address, found.c_str(), found.size() + 1);
    return absl::OkStatus();
  });
}

coordd_status_t coordd_timeline_start(coordd_worker_t* worker, const char* path,
                                      int32_t mark_cycles) {
  return AtBorder([&]() -> absl::Status {
    if (worker == nullptr) return coordd::NullArgument("worker");
    if (path == nullptr) return coordd::NullArgument("path");
    return worker->worker->StartTimeline(path, mark_cycles != 0);
  });
}

coordd_status_t coordd_timeline_stop(coordd_worker_t* worker) {
  return AtBorder([&]() -> absl::Status {
    if (worker == nullptr) return coordd::NullArgument("worker");
    return worker->worker->StopTimeline();
  });
}

const char* coordd_check_build(int32_t json) {
  thread_local std::string text;
  AtBorder([&]() -> absl::Status {
    const std::vector<coordd::Component> components =
        coordd::BuildComponents(coordd::ReadEnvironment());
    text = json != 0 ? coordd::ComponentsToJson(components)
                     : absl::StrJoin(components, "\n", [](std::string* out, const auto& component) {
                         out->append(coordd::ToLine(component));
                       });
    return absl::OkStatus();
  });
  return text.c_str();
}

}  // extern "C"
