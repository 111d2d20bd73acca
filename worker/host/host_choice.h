// Which algorithm a collective of a group on several nodes has, and what it is called. PURE.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "worker/algorithms/algorithm_table.h"
#include "worker/host/host_group.h"
#include "worker/interfaces/collective_backend.h"

namespace coordd {

// Of messages among all, whatever the nodes have.
Algorithm FlatAlgorithm(const CollectiveArgs& args, const HostGroup& group);

// Whether there may be a better one, so that the ranks have to agree.
bool HasOthers(CollectiveKind kind, const HostGroup& group);

// The same on all ranks, since they agree on all of this. `inline_bytes_max`: what a post carries
// (NodeRunOptions). REQUIRES: HasOthers.
Algorithm AgreedChoice(const CollectiveArgs& args, const HostGroup& group, HostAlgorithm agreed,
                       int64_t inline_bytes_max);

// For traces.
absl::string_view NameOf(Algorithm algorithm, CollectiveKind kind, const HostGroup& group);

}  // namespace coordd
