// How members of a process set agree on a comm. (io)
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/protocol/types.h"
#include "worker/api/comm.h"
#include "worker/api/worker.h"
#include "worker/runtime/bare_comm.h"

namespace coordd {

// Collective over the set: waits. Finds a number, and with it a lane, that is free on all members,
// by allreduces through `worker`: one where all members propose the same, two more otherwise.
// REQUIRES: of `parts` all but the lane and the mapped memory is there. RESOURCE_EXHAUSTED: no
// number or no room on some member; FAILED_PRECONDITION: a member has joined; as Work::Wait.
absl::StatusOr<std::unique_ptr<Comm>> MakeComm(Worker& worker, ProcessSetId process_set,
                                               BareComm::Needs parts);

}  // namespace coordd
