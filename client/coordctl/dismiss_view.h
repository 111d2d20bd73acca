// Making workers go: what is asked, and what is said about it. PURE
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/environment.h"
#include "coordd/v1/admin.pb.h"

namespace coordd {

struct DismissArguments {
  v1::DismissAction action = v1::DISMISS_ACTION_UNSPECIFIED;
  std::string who;  // a number: a rank; anything else: a node
  std::string job;  // empty: the only one
  double grace_seconds = 0;
  bool force = false;
};

// INVALID_ARGUMENT: a rank without the name of a job. A node names what stands on it; rank 0 there
// is in each job, and who thinks of another one than runs would make its workers go.
absl::Status CheckDismiss(const DismissArguments& arguments);

// The request that the arguments ask for. `hostname`: the name of this machine.
v1::DismissRequest DismissRequestFrom(const DismissArguments& arguments,
                                      const Environment& environment, const std::string& hostname);

// A line for each worker: "rank 2 (host node3, pid 4711) of job train is asked to leave at its next
// commit, within 30 s".
std::string DismissText(v1::DismissAction action, const v1::DismissReply& reply);

}  // namespace coordd
