// Stores what the coordinator decided, on a thread of its own: a slow disk holds up nothing but
// what waits for it. (io)
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "common/base/bounded_queue.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "server/model/effects.h"
#include "server/model/state_store.h"

namespace coordd {

class ServerMetrics;

// Thread-safe but for Stop and the destructor, which its owner calls.
class StateWriter {
 public:
  // Called on the writer's thread once what was to be announced is stored, or is not.
  using Answer = std::function<void(Persisted&&)>;

  // `store` is open and outlives this.
  StateWriter(StateStore& store, Clock& clock, ServerMetrics& metrics, Answer answer);
  ~StateWriter();  // Stop

  // Never blocks. Bounded by its cause: a job waits for an answer before it asks again, and ends
  // once.
  void Add(Persist&& persist) { queue_.PushUnbounded(std::move(persist)); }

  // Why nothing can be stored now, in one sentence; empty: the last write went well.
  std::string trouble() const;
  std::string store_name() const { return store_.name(); }

  // Writes what is queued, then ends the thread. Takes as long as the store does. Idempotent.
  void Stop();

 private:
  void Run();
  // One transaction for [first, last) if they fit; else, or if it fails and may pass, one for each.
  void Write(std::vector<Persist>& batch, size_t first, size_t last);
  absl::Status Commit(const std::vector<StateWrite>& writes);
  void Tell(Persist& persist, const absl::Status& status);

  // Constant after construction.
  StateStore& store_;
  Clock& clock_;
  ServerMetrics& metrics_;
  const Answer answer_;

  // Thread-safe by itself.
  BoundedQueue<Persist> queue_;

  // Guarded by mu_.
  mutable Mutex mu_;
  std::string trouble_ ABSL_GUARDED_BY(mu_);

  std::thread thread_;
};

}  // namespace coordd
