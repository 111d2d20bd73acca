// A thread that is started when it is first needed.
#pragma once

#include <functional>
#include <thread>
#include <utility>

#include "common/base/mutex.h"
#include "common/base/thread.h"

namespace coordd {

// Thread-safe. REQUIRES: stopped before it ends.
class LazyThread {
 public:
  // Unless it has been started, or stopped.
  void Ensure(const char* name, std::function<void()> run) {
    MutexLock lock(&mu_);
    if (stopped_ || thread_.joinable()) return;
    thread_ = StartThread(name, std::move(run));
  }
  bool runs() {
    MutexLock lock(&mu_);
    return thread_.joinable();
  }
  // It is not started any more. What is to be joined, if it was.
  std::thread Stop() {
    MutexLock lock(&mu_);
    stopped_ = true;
    return std::move(thread_);
  }

 private:
  // Guarded by mu_.
  Mutex mu_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_ ABSL_GUARDED_BY(mu_);
};

}  // namespace coordd
