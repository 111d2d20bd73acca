// Moves what some connections say to gRPC, and back. (io)
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/owned_fd.h"
#include "server/door/guarded_connection.h"

namespace coordd {

// Thread-safe but for Start and Stop, which its owner calls.
class GuardThread {
 public:
  static constexpr size_t kDescriptors = 2;  // its own
  using Owned = std::unique_ptr<GuardedConnection>;
  struct Calls {
    // On its thread. The first exchange of one is over, and it is the callee's.
    std::function<void(Owned)> begun;
    // On its thread: it has ended, and is closed when this returns.
    std::function<void(const GuardedConnection&)> ended;
  };

  GuardThread(std::string name, Calls calls, Clock& clock);
  ~GuardThread() { Stop(absl::ZeroDuration()); }

  absl::Status Start();
  // One that begins, or that goes on. After Stop it is closed.
  void Take(Owned connection);
  size_t size() const { return size_.load(std::memory_order_relaxed); }
  // Ends those that there are, if they have not ended within `grace`. Idempotent.
  void Stop(absl::Duration grace);

 private:
  struct Place {
    Owned connection;
    GuardedConnection::Interest awaited;  // of epoll, as it is told
  };

  void Run();
  int PollTimeout() const;
  bool IsOver();
  void TakeNew();
  void OnEvent(uint64_t mark, uint32_t events);
  void Serve(uint64_t id, const GuardedConnection::Ready& ready);
  void Settle(uint64_t id);  // after something has happened to it
  void Await(uint64_t id, Place& place);
  void Leave(uint64_t id);  // somebody else's from now on, or closed
  void EndOverdue();
  void End(uint64_t id);

  // Constant after Start.
  const std::string name_;
  const Calls calls_;
  Clock& clock_;
  OwnedFd epoll_;
  OwnedFd wake_;
  std::thread thread_;

  // Touched by the thread only.
  absl::flat_hash_map<uint64_t, Place> places_;
  absl::flat_hash_set<uint64_t> timed_;  // that end at some time whatever comes
  std::vector<uint64_t> more_;           // that have something to move
  uint64_t last_id_ = 0;
  absl::Time now_;
  std::unique_ptr<GuardedConnection::Piece> piece_;

  std::atomic<size_t> size_{0};

  // Guarded by mu_.
  Mutex mu_;
  std::vector<Owned> new_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time stop_by_ ABSL_GUARDED_BY(mu_);
};

}  // namespace coordd
