// Who is at the other end of each connection that gRPC serves: gRPC itself sees a socket of this
// process.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/mutex.h"
#include "server/door/flood_watch.h"
#include "server/model/access_rules.h"

namespace coordd {

// Thread-safe. Connections are called as gRPC calls them (ServerContext::peer), by names that
// coordd gives and no client has a part in.
class ConnectionTable {
 public:
  struct Client {
    int fd = -1;
    uint64_t cookie = 0;  // SocketCookie of fd
    std::string peer;     // with its port
    // Not OK: it is not clear who it is, and each call is refused with this.
    absl::StatusOr<std::shared_ptr<const Caller>> caller;
  };

  // Before gRPC has it.
  void Add(const std::string& grpc_peer, Client client);
  void Remove(const std::string& grpc_peer);

  // Never null. UNAVAILABLE: it is gone, or never was there.
  absl::StatusOr<std::shared_ptr<const Caller>> CallerAt(absl::string_view grpc_peer) const;
  std::vector<Backlog> All() const;  // `bytes` is 0

 private:
  // Guarded by mu_.
  mutable Mutex mu_;
  absl::flat_hash_map<std::string, Client> clients_ ABSL_GUARDED_BY(mu_);
};

}  // namespace coordd
