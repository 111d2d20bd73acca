// Where the data planes of generations that are over end. (io)
#pragma once

#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "common/base/bounded_queue.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace coordd {

// On a thread of its own, since what NCCL has on a GPU may take a second to end, for which the
// program would wait before it goes on in the next generation. Methods are thread-safe.
class PlaneEnd {
 public:
  explicit PlaneEnd(Clock& clock);
  ~PlaneEnd();  // waits for what it was given
  PlaneEnd(const PlaneEnd&) = delete;
  PlaneEnd& operator=(const PlaneEnd&) = delete;

  // Gives up a reference to something that is stopped: if it is the last, it ends there.
  void Take(std::shared_ptr<const void> over);

 private:
  // Thread-safe by itself.
  BoundedQueue<std::shared_ptr<const void>> queue_;

  // Guarded by mu_.
  Mutex mu_;
  std::thread thread_ ABSL_GUARDED_BY(mu_);  // from the first one on
};

}  // namespace coordd
