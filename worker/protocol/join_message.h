// What a worker tells coordd about itself, and what it learns of its place.
#pragma once

#include <sys/types.h>

#include <string>

#include "absl/status/statusor.h"
#include "common/base/random.h"
#include "common/launch/host_identity.h"
#include "common/net/address.h"
#include "coordd/v1/session.pb.h"
#include "worker/api/worker.h"
#include "worker/api/worker_options.h"
#include "worker/interfaces/group_layout.h"
#include "worker/protocol/worker_state.h"

namespace coordd {

v1::Join MakeJoin(const WorkerOptions& options, const HostIdentity& host,
                  const std::string& metrics_address, pid_t pid, Random& random);

// A numeric address of this machine by which the job's others reach it: that which packets to
// coordd leave from. Where that is loopback, and others are on other nodes, the address of the way
// out, if this machine has one.
std::string HostAddress(const HostPort& coordinator, bool has_other_nodes);

struct MemberPlace {
  Placement placement;
  GroupLayout layout;
  std::string store_prefix;
  WorkerStateOptions state;
};
// `sets`: those that follow it. INTERNAL: a place that contradicts itself; names what.
absl::StatusOr<MemberPlace> ParseMembership(const v1::CoordinatorMessage& message,
                                            const v1::ProcessSets& sets = {});

}  // namespace coordd
