// Which machine, and which memory, this process is on. (io)
#pragma once

#include <string>

namespace coordd {

struct HostIdentity {
  std::string hostname;  // short name, for people
  // Equal for processes that can share memory: hash of boot id, network namespace (over whose
  // abstract sockets memory is handed over) and IPC namespace. COORDD_NODE_ID, given by the caller,
  // replaces it: simulated nodes and tests.
  std::string node_id;
};

// The identity of this host. `node_id_override`: COORDD_NODE_ID, or empty.
HostIdentity ThisHost(const std::string& node_id_override);

}  // namespace coordd
