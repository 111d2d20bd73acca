// Which connections gRPC's servers have made transports of: those whose handshake is over. (io)
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace coordd {

// "10.0.0.1:4242" or "[::1]:4242" of channelz's name of a socket, "chttp2 ipv4:10.0.0.1:4242"
// or "chttp2 ipv6:%5B::1%5D:4242"; empty: it has none.
std::string PeerOfSocketName(absl::string_view name);

// gRPC tells it by channelz only, which numbers its sockets. Not thread-safe.
class MadeTransports {
 public:
  // The other sides of all that are open and were made since the last call, of all servers of this
  // process. Costs in proportion to these.
  std::vector<std::string> TakeNew();

 private:
  std::map<int64_t, int64_t> next_;  // by server: the number from which on sockets are new
};

}  // namespace coordd
