#include "worker/transport/tcp/tcp_peer.h"

#include <algorithm>

namespace coordd {

bool TcpPeer::is_open() const {
  return std::any_of(all_.begin(), all_.end(),
                     [](const auto& connection) { return connection->stream != nullptr; });
}

int64_t TcpPeer::pending() const {
  int64_t pending = 0;
  for (const auto& connection : all_) pending += connection->link.pending();
  return pending;
}

void TcpPeer::End(const absl::Status& status) {
  for (const auto& connection : all_) connection->link.End(status);
}

}  // namespace coordd
