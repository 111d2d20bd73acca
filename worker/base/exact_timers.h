// Exact timers for threads that poll a device. (io)
#pragma once

#include <sys/prctl.h>

namespace coordd {

// Has this thread's timed waits end when they are to end. By default the kernel may be 50 us late,
// for the sake of power, which is more than those that poll every 20 us wait for.
inline void UseExactTimers() { prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL); }

}  // namespace coordd
