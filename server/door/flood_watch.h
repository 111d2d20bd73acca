// Decides which connections are ended because what they began, and do not end, fills the memory.
// PURE.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace coordd {

// What a connection makes this process hold: of messages that are not whole yet, or by its calls.
struct Backlog {
  int fd = -1;
  uint64_t cookie = 0;         // SocketCookie of fd when it was let in
  std::string peer;            // with its port
  std::string grpc_peer = {};  // what gRPC calls it
  uint64_t bytes = 0;
};

// Not thread-safe. What all backlogs take together stays below `bytes_max` and what comes between
// two looks.
class FloodWatch {
 public:
  explicit FloodWatch(uint64_t bytes_max) : bytes_max_(bytes_max) {}

  // `resident`: bytes of memory that this process has. Whether they have become so many more since
  // the last look, or since they were fewest after it, that another look is due.
  bool IsLookDue(uint64_t resident);
  // Of all that are open those to be ended, the largest first, until the others have room.
  std::vector<Backlog> WhoEnds(std::vector<Backlog> all) const;

 private:
  const uint64_t bytes_max_;
  uint64_t resident_ = UINT64_MAX;  // at the last look, or fewer after it
};

}  // namespace coordd
