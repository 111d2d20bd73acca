#include "server/metrics/label_values.h"

namespace coordd {

using absl::StatusCode;

absl::Span<const v1::DepartureCause> DepartureCauses() {
  static constexpr v1::DepartureCause kCauses[] = {
      v1::DEPARTURE_CAUSE_LEFT,          v1::DEPARTURE_CAUSE_CONNECTION_LOST,
      v1::DEPARTURE_CAUSE_LEASE_EXPIRED, v1::DEPARTURE_CAUSE_EVICTED,
      v1::DEPARTURE_CAUSE_FAILED,        v1::DEPARTURE_CAUSE_PROTOCOL_ERROR,
      v1::DEPARTURE_CAUSE_DRAINED,       v1::DEPARTURE_CAUSE_PROGRAM_FAILED};
  return kCauses;
}

absl::Span<const v1::EventKind> JobEventKinds() {
  static constexpr v1::EventKind kKinds[] = {v1::EVENT_KIND_JOB_CREATED,
                                             v1::EVENT_KIND_JOB_ENDED,
                                             v1::EVENT_KIND_WORKER_JOINED,
                                             v1::EVENT_KIND_WORKER_DEPARTED,
                                             v1::EVENT_KIND_GENERATION_FORMED,
                                             v1::EVENT_KIND_GENERATION_ENDED,
                                             v1::EVENT_KIND_TENSOR_FAILED,
                                             v1::EVENT_KIND_STALL_BEGAN,
                                             v1::EVENT_KIND_STALL_ENDED,
                                             v1::EVENT_KIND_PROCESS_SET_CHANGED,
                                             v1::EVENT_KIND_PROCESS_SET_REFUSED,
                                             v1::EVENT_KIND_RANK_JOINED,
                                             v1::EVENT_KIND_SCHEDULE_BEGAN,
                                             v1::EVENT_KIND_SCHEDULE_BROKEN,
                                             v1::EVENT_KIND_TRACED,
                                             v1::EVENT_KIND_PROTOCOL_ERROR,
                                             v1::EVENT_KIND_JOB_RESTORED,
                                             v1::EVENT_KIND_NOT_STORED,
                                             v1::EVENT_KIND_JOB_RESUMED,
                                             v1::EVENT_KIND_PROCESS_ENDED,
                                             v1::EVENT_KIND_DRAIN_BEGAN,
                                             v1::EVENT_KIND_DRAIN_LIFTED,
                                             v1::EVENT_KIND_RANK_STUCK,
                                             v1::EVENT_KIND_STATE_LOST};
  return kKinds;
}

absl::Span<const v1::EventKind> OwnEventKinds() {
  static constexpr v1::EventKind kKinds[] = {v1::EVENT_KIND_JOIN_REFUSED,
                                             v1::EVENT_KIND_PROTOCOL_ERROR, v1::EVENT_KIND_ASLEEP};
  return kKinds;
}

absl::Span<const StatusCode> TensorFailureCodes() {
  static constexpr StatusCode kCodes[] = {
      StatusCode::kInvalidArgument,   StatusCode::kDeadlineExceeded,
      StatusCode::kCancelled,         StatusCode::kAlreadyExists,
      StatusCode::kResourceExhausted, StatusCode::kFailedPrecondition};
  return kCodes;
}

absl::Span<const StatusCode> JoinRefusalCodes() {
  static constexpr StatusCode kCodes[] = {
      StatusCode::kInvalidArgument,    StatusCode::kUnauthenticated, StatusCode::kPermissionDenied,
      StatusCode::kFailedPrecondition, StatusCode::kAlreadyExists,   StatusCode::kResourceExhausted,
      StatusCode::kUnavailable};
  return kCodes;
}

absl::Span<const StatusCode> StateCommitCodes() {
  static constexpr StatusCode kCodes[] = {
      StatusCode::kOk,       StatusCode::kUnavailable,   StatusCode::kResourceExhausted,
      StatusCode::kDataLoss, StatusCode::kAlreadyExists, StatusCode::kFailedPrecondition};
  return kCodes;
}

absl::Span<const StatusCode> StoreCallCodes() {
  static constexpr StatusCode kCodes[] = {
      StatusCode::kOk,         StatusCode::kInvalidArgument,   StatusCode::kUnauthenticated,
      StatusCode::kNotFound,   StatusCode::kPermissionDenied,  StatusCode::kFailedPrecondition,
      StatusCode::kCancelled,  StatusCode::kResourceExhausted, StatusCode::kDeadlineExceeded,
      StatusCode::kUnavailable};
  return kCodes;
}

absl::Span<const absl::string_view> StoreMethods() {
  static constexpr absl::string_view kMethods[] = {
      "set", "get", "add", "compare_set", "append", "delete", "look", "count", "delete_prefix"};
  return kMethods;
}

std::vector<DeniedCall> DeniableCalls() {
  std::vector<DeniedCall> denied;
  for (Call call : {Call::kJoin, Call::kNodeSession, Call::kStore, Call::kReportExits,
                    Call::kGetState, Call::kGetEvents, Call::kTrace, Call::kDismiss}) {
    for (Role role : {Role::kNone, Role::kOperator, Role::kLauncher, Role::kWorker, Role::kNode,
                      Role::kViewer}) {
      if (GrantOf(role, call) != Grant::kAny) denied.push_back({call, role});
    }
  }
  return denied;
}

}  // namespace coordd
