#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/status_macros.h"
#include "worker/worker_options.h"

namespace coordd {
namespace {

// Bounds of the protocol (session.proto).
constexpr size_t kMaxJobNameBytes = 128;
constexpr size_t kMaxWorkerIdBytes = 128;
constexpr size_t kMaxTokenBytes = 256;
constexpr size_t kMaxTopologyLabels = 8;
// Below it nothing fuses; above it the two buffers alone fill a small node.
constexpr int64_t kMinFusionBytes = int64_t{1} << 16;
constexpr int64_t kMaxFusionBytes = int64_t{1} << 33;

absl::Status Invalid(absl::string_view what, absl::string_view found, absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat(what, " is ", found, ", expected ", expected));
}

bool IsName(const std::string& name, size_t max_bytes) {
  if (name.empty() || name.size() > max_bytes) return false;
  for (char c : name)
    if (!absl::ascii_isalnum(c) && c != '.' && c != '_' && c != '-') return false;
  return true;
}

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
    return Invalid(name, absl::StrCat("\"", *text, "\""),
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
    return Invalid(name, absl::StrCat("\"", *text, "\""), "a positive number of seconds");
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
  std::ifstream file(*path);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) {
    return absl::InvalidArgumentError(
        absl::StrCat("COORDD_TOKEN_FILE names ", *path, ", which cannot be read or is empty"));
  }
  *token = std::string(absl::StripAsciiWhitespace(text.str()));
  return absl::OkStatus();
}

absl::Status ReadTransport(const Environment& environment, TransportChoice* transport) {
  const std::string* text = Find(environment, "COORDD_TRANSPORT");
  if (text == nullptr) return absl::OkStatus();
  if (*text == "auto") {
    *transport = TransportChoice::kAuto;
  } else if (*text == "shm") {
    *transport = TransportChoice::kShm;
  } else if (*text == "ucx") {
    *transport = TransportChoice::kUcx;
  } else {
    return Invalid("COORDD_TRANSPORT", absl::StrCat("\"", *text, "\""), "auto, shm or ucx");
  }
  return absl::OkStatus();
}

absl::Status ReadPlace(const Environment& environment, WorkerOptions* options) {
  COORDD_RETURN_IF_ERROR(ReadNumber(environment, "COORDD_RANK", 0, &options->launcher_rank));
  COORDD_RETURN_IF_ERROR(
      ReadNumber(environment, "COORDD_LOCAL_RANK", 0, &options->launcher_local_rank));
  int32_t size = 0;
  COORDD_RETURN_IF_ERROR(ReadNumber(environment, "COORDD_SIZE", 1, &size));
  options->min_workers = options->max_workers = size;
  COORDD_RETURN_IF_ERROR(ReadNumber(environment, "COORDD_MIN_WORKERS", 1, &options->min_workers));
  COORDD_RETURN_IF_ERROR(ReadNumber(environment, "COORDD_MAX_WORKERS", 1, &options->max_workers));
  if (const std::string* id = Find(environment, "COORDD_NODE_ID")) options->node_id = *id;
  if (const std::string* labels = Find(environment, "COORDD_TOPOLOGY"))
    options->topology = absl::StrSplit(*labels, '/', absl::SkipEmpty());
  return absl::OkStatus();
}

}  // namespace

absl::Status WorkerOptions::Validate() const {
  if (coordinator.host.empty() && coordinator.port == 0)
    return absl::InvalidArgumentError(
        "the coordinator's address (COORDD_ADDR) is not set: start the program with coordrun, as "
        "in "
        "\"coordrun -np 2 -- PROGRAM\", or say where coordd is, HOST:PORT");
  if (coordinator.host.empty() || coordinator.port == 0)
    return Invalid("the coordinator's address (COORDD_ADDR)",
                   absl::StrCat("\"", coordinator.ToString(), "\""), "HOST:PORT");
  if (!IsName(job, kMaxJobNameBytes))
    return Invalid("the job's name (COORDD_JOB_ID)", absl::StrCat("\"", job, "\""),
                   "1 to 128 letters, digits, '.', '_' or '-'");
  if (token.size() > kMaxTokenBytes)
    return Invalid("the job's token (COORDD_TOKEN_FILE)", absl::StrCat(token.size(), " bytes long"),
                   absl::StrCat("at most ", kMaxTokenBytes));
  if (worker_id.size() > kMaxWorkerIdBytes)
    return Invalid("the worker's id", absl::StrCat(worker_id.size(), " bytes long"),
                   absl::StrCat("at most ", kMaxWorkerIdBytes));
  if (min_workers < 0 || max_workers < 0 || (max_workers > 0 && min_workers > max_workers))
    return Invalid("the range of workers (COORDD_MIN_WORKERS, COORDD_MAX_WORKERS)",
                   absl::StrCat(min_workers, " to ", max_workers), "0 <= minimum <= maximum");
  if (settling_window.has_value() && *settling_window < absl::ZeroDuration())
    return Invalid("the settling window", absl::FormatDuration(*settling_window), "at least 0");
  if (topology.size() > kMaxTopologyLabels)
    return Invalid("the topology (COORDD_TOPOLOGY)", absl::StrCat(topology.size(), " labels long"),
                   absl::StrCat("at most ", kMaxTopologyLabels));
  for (const auto& [name, timeout] :
       {std::pair("the join timeout (COORDD_JOIN_TIMEOUT)", join_timeout),
        std::pair("the connect timeout", connect_timeout),
        std::pair("the collective timeout (COORDD_TIMEOUT)", collective_timeout)}) {
    if (timeout <= absl::ZeroDuration())
      return Invalid(name, absl::FormatDuration(timeout), "more than 0");
  }
  if (fusion_buffer_bytes < kMinFusionBytes || fusion_buffer_bytes > kMaxFusionBytes)
    return Invalid("the size of a fusion buffer", absl::StrCat(fusion_buffer_bytes, " bytes"),
                   absl::StrCat(kMinFusionBytes, " to ", kMaxFusionBytes));
  return tls.enabled() ? tls.Validate() : absl::OkStatus();
}

absl::StatusOr<WorkerOptions> WorkerOptionsFrom(const Environment& environment) {
  WorkerOptions options;
  if (const std::string* address = Find(environment, "COORDD_ADDR")) {
    COORDD_ASSIGN_OR_RETURN(options.coordinator, ReadAddress("COORDD_ADDR", *address));
  }
  if (const std::string* job = Find(environment, "COORDD_JOB_ID")) options.job = *job;
  COORDD_RETURN_IF_ERROR(ReadToken(environment, &options.token));
  if (const std::string* cert = Find(environment, "COORDD_TLS_CERT")) options.tls.cert = *cert;
  if (const std::string* key = Find(environment, "COORDD_TLS_KEY")) options.tls.key = *key;
  if (const std::string* ca = Find(environment, "COORDD_TLS_CA")) options.tls.ca = *ca;
  COORDD_RETURN_IF_ERROR(ReadPlace(environment, &options));
  if (const std::string* metrics = Find(environment, "COORDD_METRICS")) {
    COORDD_ASSIGN_OR_RETURN(options.metrics, ReadAddress("COORDD_METRICS", *metrics));
  }
  COORDD_RETURN_IF_ERROR(ReadTransport(environment, &options.transport));
  for (const auto& variable : environment)
    if (absl::StartsWith(variable.first, "UCX_")) options.ucx_environment.insert(variable);
  COORDD_RETURN_IF_ERROR(ReadSeconds(environment, "COORDD_JOIN_TIMEOUT", &options.join_timeout));
  COORDD_RETURN_IF_ERROR(ReadSeconds(environment, "COORDD_TIMEOUT", &options.collective_timeout));
  return options;
}

}  // namespace coordd
