// Which connections gRPC's servers have made transports of: those whose handshake is over. (io)
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace coordd {

// channelz numbers its sockets. Not thread-safe.
class MadeTransports {
 public:
  // The other sides of all that are open and were made since the last call, of all servers of this
  // process. Costs in proportion to these.
  std::vector<std::string> TakeNew();

 private:
  std::map<int64_t, int64_t> next_;  // by server: the number from which on sockets are new
};

}  // namespace coordd
