// Where everything that wants a decision waits for the coordinator thread.
#pragma once

#include <functional>
#include <variant>
#include <vector>

#include "common/bounded_queue.h"
#include "common/mutex.h"
#include "server/coordinator_state.h"

namespace coordd {

// A question to the state, answered on the coordinator thread; must not block. Called exactly once
// if it was accepted, also when coordd stops.
using Query = std::function<void(const CoordinatorState& state, absl::Time now)>;

// Thread-safe.
class Inbox {
 public:
  using Item = std::variant<Inbound, Query, std::vector<Inbound>>;  // in order: what came together

  // Some hundred bytes to some kilobytes each, and a turn takes all of them.
  static constexpr size_t kCapacity = 4096;

  explicit Inbox(Clock& clock, size_t capacity = kCapacity) : items_(capacity, clock) {}

  // What a client sent. False when full or closed: `item` is then untouched.
  bool Offer(Item&& item) { return items_.TryPush(std::move(item)); }

  // For a session whose message was not taken because the inbox is full: `resume` is called on the
  // coordinator thread after its next turn, and offers again. At most one per session, which is
  // what bounds it. False when closed: it is not called then.
  bool WaitForRoom(std::function<void()> resume) {
    {
      MutexLock lock(&mu_);
      waiting_.push_back(std::move(resume));
    }
    // The coordinator may have emptied the inbox in between and be asleep.
    return items_.PushUnbounded(Item(Query([](const CoordinatorState&, absl::Time) {})));
  }

  // What must not be lost and is bounded by its cause: the end of a session or call, a stop.
  bool Push(Item&& item) { return items_.PushUnbounded(std::move(item)); }

  // Makes the coordinator take a turn, e.g. to look at a deadline that is new.
  void Wake() {
    Push(Query([](const CoordinatorState&, absl::Time) {}));
  }

  // For the coordinator thread.
  std::vector<Item> TakeAll(absl::Time deadline) { return items_.TakeAll(deadline); }
  std::vector<std::function<void()>> TakeWaiting() {
    MutexLock lock(&mu_);
    return std::exchange(waiting_, {});
  }
  // No offer is taken from now on; what was taken is still handed out.
  void Close() { items_.Close(); }
  bool Finished() const { return items_.Finished(); }
  size_t size() const { return items_.size(); }

 private:
  // Thread-safe by itself.
  BoundedQueue<Item> items_;

  // Guarded by mu_.
  Mutex mu_;
  std::vector<std::function<void()>> waiting_ ABSL_GUARDED_BY(mu_);
};

}  // namespace coordd
