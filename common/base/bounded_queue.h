// The only place where threads meet: a queue with a bound, a deadline and an end.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace coordd {

// The capacity of a queue that never refuses (PushUnbounded), since what enters it is bounded
// elsewhere.
inline constexpr size_t kInboxCapacity = 4096;

// Thread-safe; any number of producers and consumers. Whoever pushes says at that place what "full"
// means.
template <typename T>
class BoundedQueue {
 public:
  BoundedQueue(size_t capacity, Clock& clock) : capacity_(capacity), clock_(clock) {}

  // False when the queue is full or closed; `value` is then untouched.
  bool TryPush(T&& value) {
    {
      MutexLock lock(&mu_);
      if (closed_ || items_.size() >= capacity_) return false;
      items_.push_back(std::move(value));
    }
    not_empty_.NotifyOne();
    return true;
  }

  // Blocks while the queue is full. False when it is closed or still full at `deadline`; `value` is
  // then untouched.
  bool Push(T&& value, absl::Time deadline) {
    {
      MutexLock lock(&mu_);
      auto has_room = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
        return closed_ || items_.size() < capacity_;
      };
      if (!clock_.Await(&mu_, &not_full_, has_room, deadline) || closed_) return false;
      items_.push_back(std::move(value));
    }
    not_empty_.NotifyOne();
    return true;
  }

  // Queues what must not be lost and is bounded elsewhere (a stop request, the end of a session):
  // ignores the capacity. False only when the queue is closed.
  bool PushUnbounded(T&& value) {
    {
      MutexLock lock(&mu_);
      if (closed_) return false;
      items_.push_back(std::move(value));
    }
    not_empty_.NotifyOne();
    return true;
  }

  // Everything that is queued, in order. Waits for something until `deadline`; empty after it, or
  // when closed and drained.
  std::vector<T> TakeAll(absl::Time deadline) {
    std::vector<T> taken;
    TakeAll(deadline, taken);
    return taken;
  }
  // Takes everything into a vector that has memory already, whose contents are replaced.
  void TakeAll(absl::Time deadline, std::vector<T>& taken) {
    {
      MutexLock lock(&mu_);
      auto ready = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return closed_ || !items_.empty(); };
      clock_.Await(&mu_, &not_empty_, ready, deadline);
      taken.clear();
      taken.swap(items_);
    }
    not_full_.NotifyAll();
  }

  // No push succeeds from now on; what is queued can still be taken. Idempotent.
  void Close() {
    {
      MutexLock lock(&mu_);
      closed_ = true;
    }
    not_empty_.NotifyAll();
    not_full_.NotifyAll();
  }

  // True once closed and drained.
  bool Finished() const {
    MutexLock lock(&mu_);
    return closed_ && items_.empty();
  }

  size_t size() const {
    MutexLock lock(&mu_);
    return items_.size();
  }
  size_t capacity() const { return capacity_; }

 private:
  // Constant after construction.
  const size_t capacity_;
  Clock& clock_;

  // Guarded by mu_.
  mutable Mutex mu_;
  CondVar not_empty_;
  CondVar not_full_;
  std::vector<T> items_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace coordd
