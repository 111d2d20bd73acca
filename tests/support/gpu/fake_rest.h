#pragma once

#include <sched.h>
#include <time.h>

namespace coordd {

// How the stand-ins wait for what another thread does: a few yields, then short sleeps. Who only
// yields keeps the cores of those it waits for; and where the kernel puts a thread behind its
// process's others by a slice for each yield (Linux 6.18), seconds later it still does not run. One
// object for each wait.
class FakeRest {
 public:
  void Once() {
    constexpr int kYields = 20;
    constexpr timespec kSleep = {0, 50'000};
    if (rounds_ < kYields) {
      ++rounds_;
      sched_yield();
    } else {
      nanosleep(&kSleep, nullptr);  // returning early is fine
    }
  }

 private:
  int rounds_ = 0;
};

}  // namespace coordd
