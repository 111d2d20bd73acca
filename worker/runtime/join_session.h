// From nothing to a place in a generation: connects, joins, waits for the Membership.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/random.h"
#include "coordd/v1/session.pb.h"
#include "worker/coordinator/coordinator_link.h"
#include "worker/runtime/control.h"

namespace coordd {

struct JoinRequest {
  v1::Join join;
  std::string coordinator;  // its address, for messages
  absl::Time deadline;
  // Finds out what is at that address where an attempt says it only in gRPC's words, as
  // ProbeCoordinator does; nullptr: nobody looks, as where another address may do.
  std::function<absl::Status()> probe = nullptr;
};

struct JoinedSession {
  std::unique_ptr<CoordinatorLink> link;
  v1::CoordinatorMessage membership;
  v1::ProcessSets process_sets;     // that came with it
  std::vector<ControlEvent> early;  // what came behind it
};

// Blocks; the link speaks into `inbox`, which nobody else reads meanwhile. A coordd that cannot be
// reached (yet), or that does not know yet whether whoever stands in the way lives, is asked again
// with back-off until the deadline. Statuses: UNAVAILABLE neither has changed, with the last
// reason that coordd gave, or else that the way to it did; FAILED_PRECONDITION, UNAUTHENTICATED
// what no waiting mends; DEADLINE_EXCEEDED how many of how many workers came; INTERNAL it broke the
// protocol; otherwise what it refused the Join with.
absl::StatusOr<JoinedSession> JoinSession(const JoinRequest& request, const LinkFactory& make_link,
                                          ControlInbox& inbox, Clock& clock, Random& random);

}  // namespace coordd
