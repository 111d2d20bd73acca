// Ends the connections whose messages, or whose calls, fill the memory and do not end. gRPC's own
// quota notices messages too late: it takes what has been announced, up to a whole message on each
// of a thousand streams of each connection. What a call costs it does not count at all, and whoever
// sends nothing but headers has begun one. (io)
#pragma once

#include <cstdint>
#include <functional>
#include <string>
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

// What all connections together may make this process hold, in bytes.
struct FloodBounds {
  uint64_t messages = 0;  // of messages that are not whole
  uint64_t calls = 0;     // by calls that have begun, at kCallCosts each
};

// Thread-safe. Its thread is `flood`.
class FloodGuard {
 public:
  struct Calls {
    std::function<std::vector<Backlog>()> connections;  // that are open; `bytes` does not matter
    std::function<void()> ended;                        // one of them was, and it was written
  };

  // What gRPC and a session keep for a call from its headers on, in bytes: measured with gRPC 1.51.
  // A unary call takes 11 KiB.
  static constexpr uint64_t kCallCosts = 18 << 10;

  // `read` outlives it.
  FloodGuard(ReadBytes& read, const FloodBounds& bounds, Clock& clock, Calls calls);
  ~FloodGuard();

 private:
  void Run();
  void LookAtMessages();
  void LookAtCalls();
  std::vector<Backlog> Open() const;  // of those that were not ended
  void End(const Backlog& one, const std::string& why);
  void ForgetGone();

  // Constant after construction.
  ReadBytes& read_;
  Clock& clock_;
  const Calls calls_;
  std::thread thread_;

  // Touched by the thread only.
  FloodWatch messages_watch_;
  FloodWatch calls_watch_;
  LogLimit limit_;
  absl::flat_hash_set<uint64_t> ended_;  // cookies of connections that are not closed yet

  // Guarded by mu_.
  Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace coordd
