// A queue whose thread waits for what comes outside of the lock under which it is taken.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/base/bounded_queue.h"
#include "common/base/clock.h"

namespace coordd {

// Thread-safe. AwaitCall is for one thread; the items may be taken by another one meanwhile.
//
// Invariant: each item that was pushed is followed by a call.
template <typename T>
class CalledQueue {
 public:
  CalledQueue(size_t capacity, Clock& clock) : items_(capacity, clock), calls_(capacity, clock) {}

  // False: it is closed; `item` is then untouched.
  bool Push(T&& item) {
    if (!items_.PushUnbounded(std::move(item))) return false;
    calls_.PushUnbounded(Call{});
    return true;
  }
  // Until something has been pushed since the last time, it is closed, or the time has come.
  void AwaitCall(absl::Time until) { calls_.TakeAll(until); }
  // What is there.
  auto TakeAll() { return items_.TakeAll(absl::InfinitePast()); }
  void Close() {
    items_.Close();
    calls_.Close();
  }
  // Closed, and nothing is left.
  bool Finished() { return items_.Finished(); }

 private:
  struct Call {};

  BoundedQueue<T> items_;
  BoundedQueue<Call> calls_;
};

}  // namespace coordd
