// Tells the thread sanitizer what gRPC orders. The packaged gRPC is not instrumented, so that the
// sanitizer cannot see that StartRead() happens before its OnReadDone(); without these it reports
// every reactor as a race.
//
// COORDD_TSAN_RELEASE(&x) right before StartRead, StartWrite, StartCall or Finish;
// COORDD_TSAN_ACQUIRE(&x) first in the callback. One object per kind of operation, so that a read
// does not order a write. Nothing in other builds.
#pragma once

#if defined(__SANITIZE_THREAD__)
#define COORDD_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define COORDD_TSAN 1
#endif
#endif

#ifdef COORDD_TSAN
extern "C" {
void __tsan_acquire(void* address);
void __tsan_release(void* address);
}
#define COORDD_TSAN_RELEASE(address) \
  __tsan_release(const_cast<void*>(static_cast<const void*>(address)))
#define COORDD_TSAN_ACQUIRE(address) \
  __tsan_acquire(const_cast<void*>(static_cast<const void*>(address)))
#else
#define COORDD_TSAN_RELEASE(address) static_cast<void>(address)
#define COORDD_TSAN_ACQUIRE(address) static_cast<void>(address)
#endif
