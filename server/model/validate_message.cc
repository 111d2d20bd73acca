#include "server/model/validate_message.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/net/address.h"
#include "common/protocol/node_metrics.h"
#include "common/protocol/proto_convert.h"
#include "common/protocol/protocol_bounds.h"
#include "common/protocol/slot_dictionary.h"
#include "common/protocol/tensor_spec.h"

namespace coordd {
namespace {

absl::Status Invalid(absl::string_view field, absl::string_view found,
                     const absl::AlphaNum& expected) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", found, ", expected ", expected));
}

absl::Status CheckBytes(absl::string_view field, absl::string_view text, int64_t low,
                        int64_t high) {
  const int64_t bytes = static_cast<int64_t>(text.size());
  if (low <= bytes && bytes <= high) return absl::OkStatus();
  return Invalid(field, absl::StrCat(bytes, " bytes"), absl::StrCat(low, " to ", high));
}

// What stands in logs, metrics, file names and on terminals: nothing that a terminal obeys.
absl::Status CheckWord(absl::string_view field, absl::string_view text, int64_t low, int64_t high) {
  COORDD_RETURN_IF_ERROR(CheckBytes(field, text, low, high));
  if (IsPrintable(text)) return absl::OkStatus();
  return Invalid(
      field, absl::StrCat("\"", PrintableText(text), "\""),
      "text of letters, marks, digits, punctuation, symbols and plain spaces: without control "
      "characters, marks that reorder it and characters that nobody sees");
}

// A word that tells one from another: the spaces around it nobody sees either.
absl::Status CheckName(absl::string_view field, absl::string_view text, int64_t low, int64_t high) {
  COORDD_RETURN_IF_ERROR(CheckWord(field, text, low, high));
  if (text.empty() || (text.front() != ' ' && text.back() != ' ')) return absl::OkStatus();
  return Invalid(field, absl::StrCat("\"", text, "\""), "no space before or behind it");
}

absl::Status CheckCount(absl::string_view field, int64_t found, int64_t high) {
  if (found <= high) return absl::OkStatus();
  return Invalid(field, absl::StrCat(found, " entries"), absl::StrCat("at most ", high));
}

absl::Status CheckNotBelow(absl::string_view field, int64_t found, int64_t low) {
  if (found >= low) return absl::OkStatus();
  return Invalid(field, absl::StrCat(found), absl::StrCat("at least ", low));
}

// Prometheus asks for it what /v1/targets says: nothing but an address gets that far.
absl::Status CheckMetricsAddress(const std::string& text) {
  COORDD_RETURN_IF_ERROR(CheckWord("metrics_address", text, 0, kMaxMetricsAddressBytes));
  if (text.empty()) return absl::OkStatus();
  const auto address = ParseHostPort(MetricsPlaceOf(text).address);
  if (address.ok() && address->port != 0) return absl::OkStatus();
  return Invalid("metrics_address", absl::StrCat("\"", text, "\""),
                 "HOST:PORT or [IPV6]:PORT with a port above 0, or of a relay HOST:PORT/node");
}

absl::Status CheckHost(const v1::HostIdentity& host) {
  COORDD_RETURN_IF_ERROR(CheckName("host.hostname", host.hostname(), 0, kMaxHostnameBytes));
  COORDD_RETURN_IF_ERROR(CheckName("host.node_id", host.node_id(), 1, kMaxNodeIdBytes));
  COORDD_RETURN_IF_ERROR(CheckCount("host.topology", host.topology_size(), kMaxTopologyLabels));
  for (const std::string& label : host.topology()) {
    COORDD_RETURN_IF_ERROR(CheckName("host.topology", label, 1, kMaxTopologyLabelBytes));
  }
  return absl::OkStatus();
}

absl::Status CheckDevice(const v1::Device& device) {
  if (device.kind() != v1::MEMORY_KIND_CUDA) {
    return Invalid("devices.kind", absl::StrCat(device.kind()), "MEMORY_KIND_CUDA");
  }
  COORDD_RETURN_IF_ERROR(CheckWord("devices.uuid", device.uuid(), 1, kMaxDeviceFieldBytes));
  return CheckWord("devices.model", device.model(), 0, kMaxDeviceFieldBytes);
}

absl::Status CheckDevices(const v1::Join& join) {
  COORDD_RETURN_IF_ERROR(CheckCount("devices", join.devices_size(), kMaxDevices));
  for (const v1::Device& device : join.devices()) COORDD_RETURN_IF_ERROR(CheckDevice(device));
  return absl::OkStatus();
}

absl::Status CheckDeviceUse(const v1::DeviceUse& use) {
  if (use.has_device()) COORDD_RETURN_IF_ERROR(CheckDevice(use.device()));
  COORDD_RETURN_IF_ERROR(CheckWord("device_use.nccl", use.nccl(), 0, kMaxVersionBytes));
  COORDD_RETURN_IF_ERROR(CheckWord("device_use.no_nccl", use.no_nccl(), 0, kMaxReasonBytes));
  COORDD_RETURN_IF_ERROR(CheckWord("device_use.sharing", use.sharing(), 0, kMaxTransportBytes));
  COORDD_RETURN_IF_ERROR(CheckNotBelow("device_use.more_paths", use.more_paths(), 0));
  COORDD_RETURN_IF_ERROR(CheckCount("device_use.paths", use.paths_size(), kMaxTensorPaths));
  for (const v1::TensorPath& path : use.paths()) {
    COORDD_RETURN_IF_ERROR(CheckNotBelow("paths.process_set", path.process_set(), 0));
    COORDD_RETURN_IF_ERROR(CheckWord("paths.why_not", path.why_not(), 0, kMaxReasonBytes));
    COORDD_RETURN_IF_ERROR(
        CheckWord("paths.within_node", path.within_node(), 0, kMaxTransportBytes));
    COORDD_RETURN_IF_ERROR(
        CheckWord("paths.between_nodes", path.between_nodes(), 0, kMaxTransportBytes));
    COORDD_RETURN_IF_ERROR(CheckWord("paths.why_flat", path.why_flat(), 0, kMaxReasonBytes));
  }
  return absl::OkStatus();
}

absl::Status CheckCommWait(const v1::CommWait& wait) {
  COORDD_RETURN_IF_ERROR(CheckWord("comm_waits.comm", wait.comm(), 1, kMaxCommWaitBytes));
  COORDD_RETURN_IF_ERROR(CheckWord("comm_waits.call", wait.call(), 1, kMaxCommWaitBytes));
  COORDD_RETURN_IF_ERROR(
      CheckCount("comm_waits.missing_ranks", wait.missing_ranks_size(), kMaxCommWaitRanks));
  for (const int32_t rank : wait.missing_ranks())
    COORDD_RETURN_IF_ERROR(CheckNotBelow("comm_waits.missing_ranks", rank, 0));
  return CheckNotBelow("comm_waits.process_set", wait.process_set(), 0);
}

absl::Status CheckDeviceBatch(const v1::DeviceBatch& batch) {
  COORDD_RETURN_IF_ERROR(
      CheckWord("device_batches.tensor", batch.tensor(), 1, kMaxDeviceBatchNameBytes));
  COORDD_RETURN_IF_ERROR(CheckNotBelow("device_batches.lane", batch.lane(), 0));
  COORDD_RETURN_IF_ERROR(CheckNotBelow("device_batches.sequence", batch.sequence(), 0));
  COORDD_RETURN_IF_ERROR(CheckNotBelow("device_batches.tensors", batch.tensors(), 1));
  COORDD_RETURN_IF_ERROR(CheckNotBelow("device_batches.kind", batch.kind(), 1));
  COORDD_RETURN_IF_ERROR(CheckNotBelow("device_batches.stage", batch.stage(), 1));
  return CheckNotBelow("device_batches.process_set", batch.process_set(), 0);
}

absl::Status CheckHostEdges(const v1::HostEdges& edges) {
  COORDD_RETURN_IF_ERROR(
      CheckWord("host_edges.within_node", edges.within_node(), 0, kMaxEdgeBytes));
  COORDD_RETURN_IF_ERROR(
      CheckCount("host_edges.between_nodes", edges.between_nodes_size(), kMaxEdgeGroups));
  for (const v1::EdgeGroup& group : edges.between_nodes()) {
    COORDD_RETURN_IF_ERROR(CheckWord("between_nodes.over", group.over(), 1, kMaxEdgeBytes));
    COORDD_RETURN_IF_ERROR(CheckNotBelow("between_nodes.ranks", group.ranks(), 1));
    COORDD_RETURN_IF_ERROR(
        CheckCount("between_nodes.first_ranks", group.first_ranks_size(), kMaxEdgeRanks));
    for (const int32_t rank : group.first_ranks())
      COORDD_RETURN_IF_ERROR(CheckNotBelow("between_nodes.first_ranks", rank, 0));
  }
  return absl::OkStatus();
}

// Numbers that people are shown. Not a NaN either.
absl::Status CheckWithin(absl::string_view field, double value, double min, double max) {
  if (value >= min && value <= max) return absl::OkStatus();
  return Invalid(field, absl::StrCat(value), absl::StrCat(min, " to ", max));
}

absl::Status CheckReadings(const v1::GpuHealth& health) {
  constexpr double kBytesMax = 1e18, kCountMax = 1e18, kSecondsMax = 1e9;
  const auto within = [](const char* field, double value, double max) {
    return CheckWithin(absl::StrCat("gpu_health.", field), value, 0, max);
  };
  COORDD_RETURN_IF_ERROR(within("utilization_percent", health.utilization_percent(), 100));
  COORDD_RETURN_IF_ERROR(
      within("memory_used_bytes", static_cast<double>(health.memory_used_bytes()), kBytesMax));
  COORDD_RETURN_IF_ERROR(
      within("memory_total_bytes", static_cast<double>(health.memory_total_bytes()), kBytesMax));
  COORDD_RETURN_IF_ERROR(within("power_watts", health.power_watts(), 1e6));
  COORDD_RETURN_IF_ERROR(
      CheckWithin("gpu_health.temperature_celsius", health.temperature_celsius(), -300, 1e4));
  COORDD_RETURN_IF_ERROR(
      within("ecc_corrected", static_cast<double>(health.ecc_corrected()), kCountMax));
  COORDD_RETURN_IF_ERROR(
      within("ecc_uncorrected", static_cast<double>(health.ecc_uncorrected()), kCountMax));
  return within("last_xid_seconds", health.last_xid_seconds(), kSecondsMax);
}

absl::Status CheckGpuHealth(const v1::GpuHealth& health) {
  COORDD_RETURN_IF_ERROR(CheckReadings(health));
  COORDD_RETURN_IF_ERROR(CheckWord("gpu_health.uuid", health.uuid(), 0, kMaxDeviceFieldBytes));
  COORDD_RETURN_IF_ERROR(CheckWord("gpu_health.trouble", health.trouble(), 0, kMaxGpuTroubleBytes));
  COORDD_RETURN_IF_ERROR(CheckNotBelow("gpu_health.last_xid", health.last_xid(), 0));
  COORDD_RETURN_IF_ERROR(CheckCount("gpu_health.throttle_reasons", health.throttle_reasons_size(),
                                    kMaxThrottleReasons));
  for (const std::string& reason : health.throttle_reasons()) {
    COORDD_RETURN_IF_ERROR(
        CheckWord("gpu_health.throttle_reasons", reason, 1, kMaxThrottleReasonBytes));
  }
  return absl::OkStatus();
}

absl::Status CheckVersions(const v1::Versions& versions) {
  COORDD_RETURN_IF_ERROR(CheckWord("versions.coordd", versions.coordd(), 0, kMaxVersionBytes));
  COORDD_RETURN_IF_ERROR(CheckWord("versions.nccl", versions.nccl(), 0, kMaxVersionBytes));
  COORDD_RETURN_IF_ERROR(CheckWord("versions.ucx", versions.ucx(), 0, kMaxVersionBytes));
  return CheckWord("versions.cuda", versions.cuda(), 0, kMaxVersionBytes);
}

absl::Status CheckLimits(const v1::JobLimits& limits) {
  COORDD_RETURN_IF_ERROR(CheckNotBelow("limits.min_workers", limits.min_workers(), 0));
  COORDD_RETURN_IF_ERROR(CheckNotBelow("limits.max_workers", limits.max_workers(), 0));
  if (limits.has_settling_window()) {
    const absl::Duration window = FromProto(limits.settling_window());
    if (window < absl::ZeroDuration() || window > absl::Hours(1)) {
      return Invalid("limits.settling_window", absl::FormatDuration(window), "0 to 1h");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateJobName(absl::string_view name) {
  if (name.empty()) {
    return Invalid("job", "it has no name",
                   absl::StrCat("one of 1 to ", kMaxJobNameBytes, " letters, digits, and . _ - ",
                                "(coordrun --job, COORDD_JOB_ID)"));
  }
  COORDD_RETURN_IF_ERROR(CheckBytes("job", name, 1, kMaxJobNameBytes));
  for (char c : name) {
    if (absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-') continue;
    return Invalid("job", absl::StrCat("byte ", static_cast<unsigned char>(c)),
                   "letters, digits, and . _ -");
  }
  return absl::OkStatus();
}

absl::Status ValidateJoin(const v1::Join& join) {
  COORDD_RETURN_IF_ERROR(ValidateJobName(join.job()));
  COORDD_RETURN_IF_ERROR(CheckBytes("token", join.token(), 0, kMaxTokenBytes));
  COORDD_RETURN_IF_ERROR(CheckName("worker_id", join.worker_id(), 1, kMaxWorkerIdBytes));
  COORDD_RETURN_IF_ERROR(CheckHost(join.host()));
  COORDD_RETURN_IF_ERROR(CheckNotBelow("launcher_rank", join.launcher_rank(), -1));
  COORDD_RETURN_IF_ERROR(CheckNotBelow("launcher_local_size", join.launcher_local_size(), 0));
  COORDD_RETURN_IF_ERROR(CheckNotBelow("launcher_local_rank", join.launcher_local_rank(), -1));
  COORDD_RETURN_IF_ERROR(CheckDevices(join));
  COORDD_RETURN_IF_ERROR(CheckVersions(join.versions()));
  COORDD_RETURN_IF_ERROR(CheckMetricsAddress(join.metrics_address()));
  COORDD_RETURN_IF_ERROR(CheckWord("launch", join.launch(), 0, kMaxLaunchBytes));
  if (!v1::OnFailure_IsValid(join.on_failure())) {
    return Invalid("on_failure", absl::StrCat(join.on_failure()), "one that this version knows");
  }
  return CheckLimits(join.limits());
}

absl::Status ValidateRecoveryReport(const v1::RecoveryReport& report) {
  COORDD_RETURN_IF_ERROR(CheckCount("lanes", report.lanes_size(), kMaxLaneReports));
  for (const v1::LaneReport& lane : report.lanes()) {
    const bool ordered =
        0 <= lane.completed() && lane.completed() <= lane.held() && lane.held() <= lane.launched();
    if (ordered) continue;
    return Invalid(absl::StrCat("lane ", lane.lane()),
                   absl::StrCat(lane.completed(), " completed, ", lane.held(), " held, ",
                                lane.launched(), " launched"),
                   "each at most the next");
  }
  return absl::OkStatus();
}

absl::Status ValidateHeartbeat(const v1::Heartbeat& heartbeat) {
  COORDD_RETURN_IF_ERROR(CheckCount("lanes", heartbeat.lanes_size(), kMaxLanePositions));
  for (const v1::LanePosition& lane : heartbeat.lanes()) {
    COORDD_RETURN_IF_ERROR(
        CheckBytes("oldest_waiting", lane.oldest_waiting(), 0, kMaxTensorNameBytes));
    COORDD_RETURN_IF_ERROR(CheckCount("marks", lane.marks_size(), kMaxLaneMarks));
    for (const v1::LaneMark& mark : lane.marks()) {
      COORDD_RETURN_IF_ERROR(CheckNotBelow("marks.cycles", mark.cycles(), 1));
      COORDD_RETURN_IF_ERROR(CheckNotBelow("marks.busy_ns", mark.busy_ns(), 0));
      COORDD_RETURN_IF_ERROR(CheckNotBelow("marks.cycles", kMaxLaneMarkCycles, mark.cycles()));
    }
  }
  COORDD_RETURN_IF_ERROR(CheckCount("comm_waits", heartbeat.comm_waits_size(), kMaxCommWaits));
  for (const v1::CommWait& wait : heartbeat.comm_waits())
    COORDD_RETURN_IF_ERROR(CheckCommWait(wait));
  COORDD_RETURN_IF_ERROR(
      CheckCount("device_batches", heartbeat.device_batches_size(), kMaxDeviceBatches));
  for (const v1::DeviceBatch& batch : heartbeat.device_batches())
    COORDD_RETURN_IF_ERROR(CheckDeviceBatch(batch));
  COORDD_RETURN_IF_ERROR(CheckNotBelow("comm_calls", heartbeat.comm_calls(), 0));
  COORDD_RETURN_IF_ERROR(CheckBytes("stack", heartbeat.stack(), 0, kMaxStackBytes));
  COORDD_RETURN_IF_ERROR(CheckGpuHealth(heartbeat.gpu_health()));
  COORDD_RETURN_IF_ERROR(CheckHostEdges(heartbeat.host_edges()));
  return CheckDeviceUse(heartbeat.device_use());
}

absl::Status ValidateTensorsReady(const v1::TensorsReady& ready) {
  const int64_t bytes = static_cast<int64_t>(ready.ByteSizeLong());
  if (bytes > kMaxTensorsReadyBytes) {
    return Invalid("tensors", absl::StrCat(bytes, " bytes"),
                   absl::StrCat("at most ", kMaxTensorsReadyBytes, " per message"));
  }
  for (const v1::TensorSpec& tensor : ready.tensors()) {
    COORDD_RETURN_IF_ERROR(CheckBytes("tensors.name", tensor.name(), 1, kMaxTensorNameBytes));
    COORDD_RETURN_IF_ERROR(CheckBytes("tensors.group", tensor.group(), 0, kMaxTensorNameBytes));
    COORDD_RETURN_IF_ERROR(CheckBytes("tensors.refused", tensor.refused(), 0, kMaxRefusalBytes));
  }
  for (const v1::CachedTensors& cached : ready.cached()) {
    COORDD_RETURN_IF_ERROR(CheckNotBelow("cached.known", cached.known(), 0));
    if (cached.bits().empty()) continue;
    COORDD_RETURN_IF_ERROR(CheckNotBelow("cached.first_slot", cached.first_slot(), 1));
    if (cached.first_slot() > cached.known())
      return Invalid("cached.first_slot", absl::StrCat(cached.first_slot()),
                     absl::StrCat("at most cached.known, ", cached.known()));
    COORDD_RETURN_IF_ERROR(CheckBytes("cached.bits", cached.bits(), 0, 2 * kMaxSlots / 8));
  }
  return absl::OkStatus();
}

absl::Status ValidateTensorsWithdrawn(const v1::TensorsWithdrawn& withdrawn) {
  const int64_t bytes = static_cast<int64_t>(withdrawn.ByteSizeLong());
  if (bytes > kMaxTensorsReadyBytes) {
    return Invalid("names", absl::StrCat(bytes, " bytes"),
                   absl::StrCat("at most ", kMaxTensorsReadyBytes, " per message"));
  }
  for (const std::string& name : withdrawn.names()) {
    COORDD_RETURN_IF_ERROR(CheckBytes("names", name, 1, kMaxTensorNameBytes));
  }
  return CheckBytes("reason", withdrawn.reason(), 0, kMaxReasonBytes);
}

absl::Status ValidateProcessSetRequest(const v1::ProcessSetRequest& request) {
  COORDD_RETURN_IF_ERROR(CheckBytes("name", request.name(), 0, kMaxProcessSetNameBytes));
  if (!request.name().empty() && request.request() != 0)
    return Invalid("request", absl::StrCat(request.request()), "0 beside a name");
  if (request.name().empty())
    COORDD_RETURN_IF_ERROR(CheckNotBelow("request", request.request(), 1));
  COORDD_RETURN_IF_ERROR(CheckNotBelow("remove", request.remove(), 0));
  return CheckCount("ranks", request.ranks_size(), kMaxProcessSetRanks);
}

absl::Status ValidateCollectiveFailed(const v1::CollectiveFailed& failed) {
  COORDD_RETURN_IF_ERROR(CheckBytes("tensor", failed.tensor(), 0, kMaxTensorNameBytes));
  return CheckBytes("detail", failed.detail(), 0, kMaxReasonBytes);
}

absl::Status ValidateScheduleBreak(const v1::ScheduleBreak& message) {
  return CheckBytes("reason", message.reason(), 0, kMaxReasonBytes);
}

absl::Status ValidateTraceChunk(const v1::TraceChunk& chunk) {
  COORDD_RETURN_IF_ERROR(CheckNotBelow("cycles", chunk.cycles(), 0));
  COORDD_RETURN_IF_ERROR(CheckNotBelow("cycles", kMaxLaneMarkCycles, chunk.cycles()));
  COORDD_RETURN_IF_ERROR(CheckNotBelow("dropped", chunk.dropped(), 0));
  return CheckBytes("batches", chunk.batches(), 0, kMaxTraceChunkBytes);
}

absl::Status ValidateLeave(const v1::Leave& leave) {
  COORDD_RETURN_IF_ERROR(CheckBytes("failure", leave.failure(), 0, kMaxReasonBytes));
  return CheckBytes("reason", leave.reason(), 0, kMaxReasonBytes);
}

absl::Status ValidateDrainRequest(const v1::DrainRequest& request) {
  COORDD_RETURN_IF_ERROR(CheckBytes("reason", request.reason(), 0, kMaxAskedByBytes));
  const absl::Duration grace = FromProto(request.grace());
  if (absl::ZeroDuration() <= grace && grace <= kMaxDrainGrace) return absl::OkStatus();
  return Invalid("grace", absl::FormatDuration(grace), "0 s to a week");
}

absl::Status ValidateDismiss(const v1::DismissRequest& request) {
  const v1::DismissAction action = request.action();
  if (action < v1::DISMISS_ACTION_EVICT || action > v1::DISMISS_ACTION_LIFT)
    return Invalid("action", absl::StrCat(static_cast<int>(action)), "evict, drain or lift");
  if (!request.job().empty()) COORDD_RETURN_IF_ERROR(ValidateJobName(request.job()));
  COORDD_RETURN_IF_ERROR(CheckBytes("asked_by", request.asked_by(), 0, kMaxAskedByBytes));
  const double grace = request.grace_seconds();
  if (!(0 <= grace && grace <= absl::ToDoubleSeconds(kMaxDrainGrace)))
    return Invalid("grace_seconds", absl::StrCat(grace), "0 to a week");
  COORDD_RETURN_IF_ERROR(CheckCount("launches", request.launches_size(), kMaxDismissedLaunches));
  const bool by_who = request.who_case() != v1::DismissRequest::WHO_NOT_SET;
  if (by_who == !request.launches().empty())
    return Invalid("who", by_who ? "a rank or a node, and launches" : "nobody",
                   "a rank, a node or launches");
  if (request.has_rank()) return CheckNotBelow("rank", request.rank(), 0);
  return by_who ? CheckWord("node", request.node(), 1, kMaxNodeIdBytes) : absl::OkStatus();
}

std::string Truncated(absl::string_view text, size_t bytes) {
  if (text.size() <= bytes) return std::string(text);
  // 10xxxxxx continues a character.
  while (bytes > 0 && (static_cast<unsigned char>(text[bytes]) & 0xC0) == 0x80) --bytes;
  return std::string(text.substr(0, bytes));
}

absl::StatusOr<size_t> CheckSpace(const google::protobuf::Message& message, size_t bytes) {
  // A byte takes fourteen where tensors have names of a letter.
  constexpr size_t kFree = 64 << 10, kMostOfAByte = 20;
  const size_t space = message.SpaceUsedLong();
  if (space <= kFree + kMostOfAByte * bytes) return space;
  return absl::InvalidArgumentError(
      absl::StrCat("a message of ", bytes, " bytes takes ", space,
                   " bytes of memory: thousands of its parts have nothing in them"));
}

}  // namespace coordd
