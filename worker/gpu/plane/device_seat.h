// Who launches on the device: one thread at a time.
#pragma once

#include <mutex>

#include "absl/base/thread_annotations.h"

namespace coordd {

// The thread "device" waits for it; a caller takes it when it is free. What is touched in it is
// guarded by it.
class ABSL_LOCKABLE DeviceSeat {
 public:
  class ABSL_SCOPED_LOCKABLE Sit {
   public:
    explicit Sit(DeviceSeat* seat) ABSL_EXCLUSIVE_LOCK_FUNCTION(seat) : seat_(seat) {
      seat_->mu_.lock();
    }
    ~Sit() ABSL_UNLOCK_FUNCTION() { seat_->mu_.unlock(); }
    Sit(const Sit&) = delete;
    Sit& operator=(const Sit&) = delete;

   private:
    DeviceSeat* const seat_;
  };

  DeviceSeat() = default;
  bool TryTake() ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true) { return mu_.try_lock(); }
  void Leave() ABSL_UNLOCK_FUNCTION() { mu_.unlock(); }

 private:
  std::mutex mu_;
};

}  // namespace coordd
