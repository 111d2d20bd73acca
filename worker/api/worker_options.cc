#include "worker/api/worker_options.h"

#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/unix_path.h"
#include "common/grpc/own_certificate.h"
#include "common/protocol/protocol_bounds.h"
#include "worker/api/invalid_option.h"

namespace coordd {
namespace {

// Below it nothing fuses; above it the two buffers alone fill a small node.
constexpr int64_t kMinFusionBytes = int64_t{1} << 16;
constexpr int64_t kMaxFusionBytes = int64_t{1} << 33;

bool IsName(const std::string& name, size_t max_bytes) {
  if (name.empty() || name.size() > max_bytes) return false;
  for (char c : name)
    if (!absl::ascii_isalnum(c) && c != '.' && c != '_' && c != '-') return false;
  return true;
}

}  // namespace

absl::Status WorkerOptions::Validate() const {
  if (!auto_coordinator && (coordinator.host.empty() || coordinator.port == 0))
    return InvalidOption("the coordinator's address (COORDD_ADDR)",
                         absl::StrCat("\"", coordinator.ToString(), "\""), "HOST:PORT");
  const absl::string_view socket = absl::StripPrefix(node_session, "unix:");
  if (!node_session.empty() &&
      (!absl::StartsWith(node_session, "unix:/") || socket.size() > kUnixPathBytesMax))
    return InvalidOption(
        "the node's relay (COORDD_NODE_SESSION)", absl::StrCat("\"", node_session, "\""),
        absl::StrCat("unix: and a path from / on of at most ", kUnixPathBytesMax, " bytes"));
  if (!IsName(job, kMaxJobNameBytes))
    return InvalidOption("the job's name (COORDD_JOB_ID)",
                         absl::StrCat("\"", absl::CHexEscape(job), "\""),
                         "1 to 128 letters, digits, '.', '_' or '-'");
  if (std::ssize(token) > kMaxTokenBytes)
    return InvalidOption("the job's token (COORDD_TOKEN_FILE)",
                         absl::StrCat(token.size(), " bytes long"),
                         absl::StrCat("at most ", kMaxTokenBytes));
  if (std::ssize(worker_id) > kMaxWorkerIdBytes)
    return InvalidOption("the worker's id", absl::StrCat(worker_id.size(), " bytes long"),
                         absl::StrCat("at most ", kMaxWorkerIdBytes));
  if (min_workers < 0 || max_workers < 0 || (max_workers > 0 && min_workers > max_workers))
    return InvalidOption("the range of workers (COORDD_MIN_WORKERS, COORDD_MAX_WORKERS)",
                         absl::StrCat(min_workers, " to ", max_workers), "0 <= minimum <= maximum");
  if (settling_window.has_value() && *settling_window < absl::ZeroDuration())
    return InvalidOption("the settling window", absl::FormatDuration(*settling_window),
                         "at least 0");
  if (std::ssize(topology) > kMaxTopologyLabels)
    return InvalidOption("the topology (COORDD_TOPOLOGY)",
                         absl::StrCat(topology.size(), " labels long"),
                         absl::StrCat("at most ", kMaxTopologyLabels));
  for (const auto& [name, timeout] :
       {std::pair("the join timeout (COORDD_JOIN_TIMEOUT)", join_timeout),
        std::pair("the resume timeout (COORDD_RESUME_TIMEOUT)", resume_timeout),
        std::pair("the connect timeout", connect_timeout),
        std::pair("the collective timeout (COORDD_TIMEOUT)", collective_timeout)}) {
    if (timeout <= absl::ZeroDuration())
      return InvalidOption(name, absl::FormatDuration(timeout), "more than 0");
  }
  if (fusion_buffer_bytes < kMinFusionBytes || fusion_buffer_bytes > kMaxFusionBytes)
    return InvalidOption("the size of a fusion buffer", absl::StrCat(fusion_buffer_bytes, " bytes"),
                         absl::StrCat(kMinFusionBytes, " to ", kMaxFusionBytes));
  return CheckOwnCertificate(tls, TlsSide::kClient);
}

}  // namespace coordd
