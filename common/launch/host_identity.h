// Which machine, and which memory, this process is on. (io)
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace coordd {

struct HostIdentity {
  std::string hostname;  // short name, for people
  // Equal for processes that can share memory: hash of boot id, network namespace (over whose
  // abstract sockets memory is handed over), IPC namespace and user (who alone gets it).
  // COORDD_NODE_ID, given by the caller, replaces it: containers that share memory though these
  // differ, simulated nodes and tests.
  std::string node_id;
};

// The user outside of this user namespace that is `user` within, by the contents of uid_map in
// proc(5): two containers may both have a user 0, which are two users of the machine. Without a
// line for it: `user`.
uint64_t OuterUser(absl::string_view uid_map, uint64_t user);

// The identity of this host. `node_id_override`: COORDD_NODE_ID, or empty.
HostIdentity ThisHost(const std::string& node_id_override);

}  // namespace coordd
