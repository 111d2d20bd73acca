#include "worker/api/options_from_environment.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/base/token_file.h"
#include "common/base/utf8.h"
#include "common/machine/ucx_library.h"
#include "worker/api/invalid_option.h"
#include "worker/gpu/nccl/nccl_wishes.h"

namespace coordd {
namespace {

// Of a scheduler's name for a job, as a job's name here; the protocol's bound is larger.
constexpr size_t kMaxRunNameBytes = 100;
// Beyond it a check finds next to nothing.
constexpr double kMaxCheckTolerance = 0.1;

// The value of a variable; nullptr when it is absent or empty.
const std::string* Find(const Environment& environment, const std::string& name) {
  const auto found = environment.find(name);
  return found == environment.end() || found->second.empty() ? nullptr : &found->second;
}

absl::Status ReadNumber(const Environment& environment, const std::string& name, int32_t minimum,
                        int32_t* value) {
  const std::string* text = Find(environment, name);
  if (text == nullptr) return absl::OkStatus();
  int32_t number = 0;
  if (!absl::SimpleAtoi(*text, &number) || number < minimum)
    return InvalidOption(name, absl::StrCat("\"", *text, "\""),
                         absl::StrCat("a whole number of at least ", minimum));
  *value = number;
  return absl::OkStatus();
}

absl::Status ReadSeconds(const Environment& environment, const std::string& name,
                         absl::Duration* value) {
  const std::string* text = Find(environment, name);
  if (text == nullptr) return absl::OkStatus();
  double seconds = 0;
  // NaN fails the comparison too.
  if (!absl::SimpleAtod(*text, &seconds) || !(seconds > 0 && seconds <= 1e9))
    return InvalidOption(name, absl::StrCat("\"", *text, "\""), "a positive number of seconds");
  *value = absl::Seconds(seconds);
  return absl::OkStatus();
}

absl::StatusOr<HostPort> ReadAddress(const std::string& name, const std::string& text) {
  absl::StatusOr<HostPort> address = ParseHostPort(text);
  if (!address.ok())
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", address.status().message()));
  return address;
}

absl::Status ReadToken(const Environment& environment, std::string* token) {
  const std::string* path = Find(environment, "COORDD_TOKEN_FILE");
  if (path == nullptr) return absl::OkStatus();
  COORDD_ASSIGN_OR_RETURN(*token, ReadTokenFile("COORDD_TOKEN_FILE", *path));
  return absl::OkStatus();
}

absl::Status ReadTransport(const Environment& environment, TransportChoice* transport) {
  const std::string* text = Find(environment, "COORDD_TRANSPORT");
  if (text == nullptr) return absl::OkStatus();
  if (*text == "auto") {
    *transport = TransportChoice::kAuto;
  } else if (*text == "mapped") {
    *transport = TransportChoice::kMapped;
  } else if (*text == "shm") {
    *transport = TransportChoice::kShm;
  } else if (*text == "tcp") {
    *transport = TransportChoice::kTcp;
  } else if (*text == "ucx") {
    *transport = TransportChoice::kUcx;
  } else {
    return InvalidOption("COORDD_TRANSPORT", absl::StrCat("\"", *text, "\""),
                         "auto, mapped, shm, tcp or ucx");
  }
  return absl::OkStatus();
}

absl::Status ReadDataEncryption(const Environment& environment, bool* encrypts) {
  const std::string* text = Find(environment, "COORDD_DATA_ENCRYPTION");
  if (text == nullptr) return absl::OkStatus();
  if (*text != "on" && *text != "off")
    return InvalidOption("COORDD_DATA_ENCRYPTION", absl::StrCat("\"", *text, "\""), "on or off");
  *encrypts = *text == "on";
  return absl::OkStatus();
}

absl::Status ReadTcpConnections(const Environment& environment, int32_t* connections) {
  constexpr int32_t kMost = 16;  // kTcpConnectionsMax
  const std::string* text = Find(environment, "COORDD_TCP_CONNECTIONS");
  if (text == nullptr) return absl::OkStatus();
  int32_t number = 0;
  if (!absl::SimpleAtoi(*text, &number) || number < 1 || number > kMost)
    return InvalidOption("COORDD_TCP_CONNECTIONS", absl::StrCat("\"", *text, "\""),
                         absl::StrCat("a whole number from 1 to ", kMost));
  *connections = number;
  return absl::OkStatus();
}

absl::Status ReadLogLevel(const Environment& environment, LogLevel* level) {
  const std::string* text = Find(environment, "COORDD_LOG_LEVEL");
  if (text == nullptr) return absl::OkStatus();
  constexpr std::pair<absl::string_view, LogLevel> kLevels[] = {{"debug", LogLevel::kDebug},
                                                                {"info", LogLevel::kInfo},
                                                                {"warning", LogLevel::kWarning},
                                                                {"error", LogLevel::kError}};
  for (const auto& [name, value] : kLevels) {
    if (*text != name) continue;
    *level = value;
    return absl::OkStatus();
  }
  return InvalidOption("COORDD_LOG_LEVEL", absl::StrCat("\"", *text, "\""),
                       "debug, info, warning or error");
}

// "1" or "0".
absl::Status ReadSwitch(const Environment& environment, const char* name, bool* on) {
  const std::string* text = Find(environment, name);
  if (text == nullptr) return absl::OkStatus();
  *on = *text == "1";
  if (*on || *text == "0") return absl::OkStatus();
  return InvalidOption(name, absl::StrCat("\"", *text, "\""), "0 or 1");
}

absl::Status ReadGpuRegistration(const Environment& environment, WorkerOptions& options) {
  const std::string* text = Find(environment, "COORDD_GPU_REGISTER");
  if (text == nullptr) return absl::OkStatus();
  options.register_gpu_buffers = *text != "0";
  options.symmetric_gpu_windows = *text == "symmetric";
  if (*text == "0" || *text == "1" || options.symmetric_gpu_windows) return absl::OkStatus();
  return InvalidOption("COORDD_GPU_REGISTER", absl::StrCat("\"", *text, "\""), "0, 1 or symmetric");
}

absl::Status ReadOnFailure(const Environment& environment, OnFailure* on_failure) {
  const std::string* text = Find(environment, "COORDD_ON_FAILURE");
  if (text == nullptr) return absl::OkStatus();
  const std::optional<OnFailure> named = OnFailureFromName(*text);
  if (!named.has_value())
    return InvalidOption("COORDD_ON_FAILURE", absl::StrCat("\"", *text, "\""),
                         "end, raise or continue");
  *on_failure = *named;
  return absl::OkStatus();
}

absl::Status ReadHostAlgorithm(const Environment& environment, HostAlgorithm* algorithm) {
  const std::string* text = Find(environment, "COORDD_HOST_ALGORITHM");
  if (text == nullptr) return absl::OkStatus();
  const std::optional<HostAlgorithm> named = HostAlgorithmFromName(*text);
  if (!named.has_value()) {
    return InvalidOption("COORDD_HOST_ALGORITHM", absl::StrCat("\"", *text, "\""),
                         "auto, flat or hierarchical");
  }
  *algorithm = *named;
  return absl::OkStatus();
}

absl::Status ReadGpuAlgorithm(const Environment& environment, GpuAlgorithm* algorithm) {
  const std::string* text = Find(environment, "COORDD_GPU_ALGORITHM");
  if (text == nullptr) return absl::OkStatus();
  const std::optional<GpuAlgorithm> named = GpuAlgorithmFromName(*text);
  if (!named.has_value()) {
    return InvalidOption("COORDD_GPU_ALGORITHM", absl::StrCat("\"", *text, "\""),
                         "auto, flat or hierarchical");
  }
  *algorithm = *named;
  return absl::OkStatus();
}

absl::Status CheckNcclWishes(const Environment& environment) {
  const std::string* text = Find(environment, "COORDD_NCCL_CONFIG");
  if (text == nullptr) return absl::OkStatus();
  const absl::Status parsed = NcclWishes::Parse(*text).status();
  if (parsed.ok()) return parsed;
  return absl::InvalidArgumentError(absl::StrCat("COORDD_NCCL_CONFIG: ", parsed.message()));
}

absl::Status ReadCheckResults(const Environment& environment, std::optional<double>* tolerance) {
  const std::string* text = Find(environment, "COORDD_CHECK_RESULTS");
  if (text == nullptr) return absl::OkStatus();
  double number = 0;
  // 0 and 1 would be a switch's. NaN fails the comparison too.
  if (!absl::SimpleAtod(*text, &number) || !(number > 0 && number <= kMaxCheckTolerance)) {
    return InvalidOption("COORDD_CHECK_RESULTS", absl::StrCat("\"", *text, "\""),
                         absl::StrCat("a relative tolerance of more than 0 and at most ",
                                      kMaxCheckTolerance, ", such as 1e-6; unset for no check"));
  }
  *tolerance = number;
  return absl::OkStatus();
}

// Of the coordinator: host and port, or "auto".
absl::Status ReadCoordinator(const Environment& environment, WorkerOptions* options) {
  const std::string* address = Find(environment, "COORDD_ADDR");
  options->auto_coordinator = address == nullptr || *address == "auto";
  if (options->auto_coordinator) return absl::OkStatus();
  // Several: of one coordd after the other, as they stand by for each other.
  bool first = true;
  for (const absl::string_view one : absl::StrSplit(*address, ',')) {
    COORDD_ASSIGN_OR_RETURN(HostPort parsed, ReadAddress("COORDD_ADDR", std::string(one)));
    if (std::exchange(first, false)) {
      options->coordinator = std::move(parsed);
    } else {
      options->further_coordinators.push_back(std::move(parsed));
    }
  }
  return absl::OkStatus();
}

// "auto" and "auto:PORT" besides addresses.
absl::Status ReadMetrics(const Environment& environment, WorkerOptions* options) {
  const std::string* text = Find(environment, "COORDD_METRICS");
  if (text == nullptr) return absl::OkStatus();
  if (*text == "auto") {
    options->metrics = HostPort();
    return absl::OkStatus();
  }
  COORDD_ASSIGN_OR_RETURN(options->metrics, ReadAddress("COORDD_METRICS", *text));
  if (options->metrics->host == "auto") options->metrics->host.clear();
  return absl::OkStatus();
}

absl::Status ReadPorts(const Environment& environment, WorkerOptions* options) {
  const std::string* text = Find(environment, "COORDD_PORT_RANGE");
  if (text == nullptr) return absl::OkStatus();
  const absl::StatusOr<PortRange> ports = ParsePortRange(*text);
  if (!ports.ok())
    return absl::InvalidArgumentError(
        absl::StrCat("COORDD_PORT_RANGE: ", ports.status().message()));
  options->ports = *ports;
  return absl::OkStatus();
}

// What the launcher says, until a variable of ours says otherwise.
absl::Status ReadLaunch(const Environment& environment, const LaunchFacts& facts,
                        WorkerOptions* options) {
  const std::string* requested = Find(environment, "COORDD_LAUNCHER");
  absl::StatusOr<LaunchPlace> place =
      DetectLaunchPlace(environment, facts, requested == nullptr ? "" : *requested);
  if (absl::IsFailedPrecondition(place.status())) return place.status();
  if (!place.ok())
    return absl::InvalidArgumentError(absl::StrCat("COORDD_LAUNCHER: ", place.status().message()));
  options->launch = *std::move(place);
  options->launcher_rank = options->launch.rank;
  options->launcher_local_rank = options->launch.local_rank;
  if (options->launch.size > 0) options->min_workers = options->max_workers = options->launch.size;
  if (!options->launch.run_name.empty()) {
    options->job = options->launch.run_name.substr(0, kMaxRunNameBytes);
    for (char& c : options->job)
      if (!absl::ascii_isalnum(c) && c != '.' && c != '_' && c != '-') c = '_';
  }
  return absl::OkStatus();
}

// Who this worker is by our own variables, which win one by one.
absl::Status ReadRank(const Environment& environment, WorkerOptions* options) {
  if (options->launch.inside_coordrun) return absl::OkStatus();
  COORDD_RETURN_IF_ERROR(ReadNumber(environment, "COORDD_RANK", 0, &options->launcher_rank));
  COORDD_RETURN_IF_ERROR(
      ReadNumber(environment, "COORDD_LOCAL_RANK", 0, &options->launcher_local_rank));
  int32_t size = 0;
  COORDD_RETURN_IF_ERROR(ReadNumber(environment, "COORDD_SIZE", 1, &size));
  if (size > 0) options->min_workers = options->max_workers = size;
  COORDD_RETURN_IF_ERROR(ReadNumber(environment, "COORDD_MIN_WORKERS", 1, &options->min_workers));
  COORDD_RETURN_IF_ERROR(ReadNumber(environment, "COORDD_MAX_WORKERS", 1, &options->max_workers));
  absl::Duration window = absl::ZeroDuration();
  COORDD_RETURN_IF_ERROR(ReadSeconds(environment, "COORDD_SETTLING_WINDOW", &window));
  if (window > absl::ZeroDuration()) options->settling_window = window;
  if (const std::string* id = Find(environment, "COORDD_LAUNCH_ID")) options->launch_id = *id;
  return absl::OkStatus();
}

absl::Status ReadPlace(const Environment& environment, WorkerOptions* options) {
  COORDD_RETURN_IF_ERROR(ReadRank(environment, options));
  if (const std::string* id = Find(environment, "COORDD_NODE_ID")) options->node_id = *id;
  if (const std::string* relay = Find(environment, "COORDD_NODE_SESSION"))
    options->node_session = *relay;
  options->topology = options->launch.topology;
  if (const std::string* labels = Find(environment, "COORDD_TOPOLOGY"))
    options->topology = absl::StrSplit(*labels, '/', absl::SkipEmpty());
  return absl::OkStatus();
}

absl::StatusOr<WorkerOptions> ReadOptions(const Environment& environment,
                                          const LaunchFacts& facts) {
  WorkerOptions options;
  COORDD_RETURN_IF_ERROR(ReadCoordinator(environment, &options));
  COORDD_RETURN_IF_ERROR(ReadLaunch(environment, facts, &options));
  if (const std::string* job = Find(environment, "COORDD_JOB_ID")) options.job = *job;
  COORDD_RETURN_IF_ERROR(ReadToken(environment, &options.token));
  if (const std::string* cert = Find(environment, "COORDD_TLS_CERT")) options.tls.cert = *cert;
  if (const std::string* key = Find(environment, "COORDD_TLS_KEY")) options.tls.key = *key;
  if (const std::string* ca = Find(environment, "COORDD_TLS_CA")) options.tls.ca = *ca;
  COORDD_RETURN_IF_ERROR(ReadPlace(environment, &options));
  COORDD_RETURN_IF_ERROR(ReadMetrics(environment, &options));
  COORDD_RETURN_IF_ERROR(ReadPorts(environment, &options));
  COORDD_RETURN_IF_ERROR(ReadTransport(environment, &options.transport));
  COORDD_RETURN_IF_ERROR(ReadDataEncryption(environment, &options.encrypt_data));
  COORDD_RETURN_IF_ERROR(ReadTcpConnections(environment, &options.tcp_connections));
  COORDD_RETURN_IF_ERROR(ReadHostAlgorithm(environment, &options.host_algorithm));
  COORDD_RETURN_IF_ERROR(ReadOnFailure(environment, &options.on_failure));
  COORDD_RETURN_IF_ERROR(ReadCheckResults(environment, &options.check_results));
  COORDD_RETURN_IF_ERROR(ReadLogLevel(environment, &options.log_level));
  for (const auto& variable : environment)
    if (absl::StartsWith(variable.first, "UCX_") || variable.first == kUcxVariable)
      options.ucx_environment.insert(variable);
  for (const char* name :
       {"COORDD_NCCL_LIBRARY", "COORDD_NCCL_CONFIG", "NCCL_SOCKET_IFNAME", "NCCL_HOSTID",
        "NCCL_IB_DISABLE", "NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_NET_GDR_LEVEL",
        "NCCL_DMABUF_ENABLE", "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NVTX_INJECTION64_PATH",
        "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"})
    if (const std::string* value = Find(environment, name)) options.nccl_environment[name] = *value;
  COORDD_RETURN_IF_ERROR(
      ReadSwitch(environment, "COORDD_ALLOW_SHARED_GPU", &options.device_rules.allow_shared_gpu));
  COORDD_RETURN_IF_ERROR(
      ReadSwitch(environment, "COORDD_REQUIRE_RDMA", &options.device_rules.require_rdma));
  COORDD_RETURN_IF_ERROR(ReadGpuAlgorithm(environment, &options.device_rules.algorithm));
  COORDD_RETURN_IF_ERROR(CheckNcclWishes(environment));
  COORDD_RETURN_IF_ERROR(ReadGpuRegistration(environment, options));
  COORDD_RETURN_IF_ERROR(
      ReadSwitch(environment, "COORDD_GPU_SHRINK", &options.shrink_gpu_communicators));
  COORDD_RETURN_IF_ERROR(
      ReadSwitch(environment, "COORDD_GPU_DIRECT", &options.direct_gpu_communicators));
  COORDD_RETURN_IF_ERROR(
      ReadSeconds(environment, "COORDD_GPU_GATE_LIMIT", &options.gpu_gate_limit));
  for (const char* name : {"HOME", "PATH", "XDG_RUNTIME_DIR", "COORDD_RENDEZVOUS_FILE"})
    if (const std::string* value = Find(environment, name)) options.places[name] = *value;
  if (const std::string* timeline = Find(environment, "COORDD_TIMELINE"))
    options.timeline = *timeline;
  const std::string* mark = Find(environment, "COORDD_TIMELINE_MARK_CYCLES");
  options.timeline_mark_steps = mark != nullptr && *mark != "0";
  COORDD_RETURN_IF_ERROR(ReadSeconds(environment, "COORDD_JOIN_TIMEOUT", &options.join_timeout));
  COORDD_RETURN_IF_ERROR(
      ReadSeconds(environment, "COORDD_RESUME_TIMEOUT", &options.resume_timeout));
  COORDD_RETURN_IF_ERROR(ReadSeconds(environment, "COORDD_TIMEOUT", &options.collective_timeout));
  return options;
}

}  // namespace

// Programs print what they are told, Python's included.
absl::StatusOr<WorkerOptions> WorkerOptionsFrom(const Environment& environment,
                                                const LaunchFacts& facts) {
  absl::StatusOr<WorkerOptions> options = ReadOptions(environment, facts);
  if (options.ok()) return options;
  return absl::Status(options.status().code(), PrintableText(options.status().message()));
}

}  // namespace coordd
