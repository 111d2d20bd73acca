// Ends the connections whose messages fill the memory and do not end. gRPC's own quota notices them
// too late: it takes what has been announced, up to a whole message on each of a thousand streams
// of each connection. (io)
#pragma once

#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/log_limit.h"
#include "common/base/mutex.h"
#include "server/door/flood_watch.h"

namespace coordd {

class ReadBytes;

// Thread-safe. Its thread is `flood`.
class FloodGuard {
 public:
  struct Calls {
    std::function<std::vector<Backlog>()> connections;  // that are open; `bytes` does not matter
    std::function<void()> ended;                        // one of them was, and it was written
  };

  // `read` outlives it. `bytes_max`: what all connections may have sent of unfinished messages.
  FloodGuard(ReadBytes& read, uint64_t bytes_max, Clock& clock, Calls calls);
  ~FloodGuard();

 private:
  void Run();
  void Look();
  void End(const Backlog& one);
  void ForgetGone();

  // Constant after construction.
  ReadBytes& read_;
  Clock& clock_;
  const Calls calls_;
  std::thread thread_;

  // Touched by the thread only.
  FloodWatch watch_;
  LogLimit limit_;
  absl::flat_hash_set<uint64_t> ended_;  // cookies of connections that are not closed yet

  // Guarded by mu_.
  Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace coordd
