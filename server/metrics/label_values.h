// What the labels of coordd's counters can say. A series that appears with its first count is no
// increase to Prometheus, so the first loss of a job would wake nobody: each series is there, at 0,
// before. PURE.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "coordd/v1/admin.pb.h"
#include "server/model/access_rules.h"

namespace coordd {

absl::Span<const v1::DepartureCause> DepartureCauses();
// Of the events of a job, and of those without one: coordd's own, and what strangers cause.
absl::Span<const v1::EventKind> JobEventKinds();
absl::Span<const v1::EventKind> OwnEventKinds();
absl::Span<const absl::StatusCode> TensorFailureCodes();
absl::Span<const absl::StatusCode> JoinRefusalCodes();
absl::Span<const absl::StatusCode> StateCommitCodes();
absl::Span<const absl::StatusCode> StoreCallCodes();
absl::Span<const absl::string_view> StoreMethods();

struct DeniedCall {
  Call call;
  Role role;
};
// Those that the access rules can deny.
std::vector<DeniedCall> DeniableCalls();

}  // namespace coordd
