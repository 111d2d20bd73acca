// The watchdog of a backend that may be aborted before it is connected.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "worker/gpu/nccl/nccl_watchdog.h"
#include "worker/interfaces/collective_backend.h"

namespace coordd {

// Invariant: once aborted, the watchdog has failed as soon as it is there.
class LateWatchdog {
 public:
  // On the owner's thread, once.
  void Start(std::unique_ptr<NcclWatchdog> watchdog) {
    watchdog_ = std::move(watchdog);
    for_others_.store(watchdog_.get());
    if (aborted_.load()) watchdog_->Fail(CollectivesAborted());
  }
  // On the owner's thread, when no other one calls any more.
  void End() { watchdog_.reset(); }
  // For the owner's thread. REQUIRES: started.
  NcclWatchdog* operator->() const { return watchdog_.get(); }
  NcclWatchdog& operator*() const { return *watchdog_; }
  bool started() const { return watchdog_ != nullptr; }

  // Thread-safe. nullptr: it is not there yet.
  NcclWatchdog* get() const { return for_others_.load(); }
  void Abort() {
    aborted_.store(true);
    if (NcclWatchdog* watchdog = get()) watchdog->Fail(CollectivesAborted());
  }

 private:
  std::atomic<bool> aborted_ = false;
  std::atomic<NcclWatchdog*> for_others_ = nullptr;
  std::unique_ptr<NcclWatchdog> watchdog_;
};

}  // namespace coordd
