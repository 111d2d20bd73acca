// MASTER_PORT: a free TCP port of this machine for the store of torch's rank 0. (io)
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/owned_fd.h"

namespace coordd {

// A port that is only looked up and let go may be somebody else's a moment later: each connection
// out of this machine takes one of the same range. So the socket stays bound, without listening, as
// long as this object lives. Linux gives such a port to nobody else, neither to connections nor to
// bind(0); but who asks for it by number with SO_REUSEADDR, as torch's TCPStore does, may listen
// there.
class MasterPort {
 public:
  // `port_range`: "20000-20100", of which the last free one is taken, since workers take the first;
  // empty: the system's choice. UNAVAILABLE: none is free.
  static absl::StatusOr<MasterPort> Reserve(const std::string& port_range);

  uint16_t port() const { return port_; }
  // For the program that this process becomes: the socket stays bound as long as that lives.
  void KeepOverExec() const;

 private:
  MasterPort(OwnedFd socket, uint16_t port) : socket_(std::move(socket)), port_(port) {}

  OwnedFd socket_;
  uint16_t port_ = 0;
};

}  // namespace coordd
