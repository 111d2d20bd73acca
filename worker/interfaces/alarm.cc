#include "worker/interfaces/alarm.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

namespace coordd {
namespace {

constexpr int64_t kSecondInNanoseconds = 1'000'000'000;

}  // namespace

Alarm::Alarm() : event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

// The look that follows comes behind the store, as the load of Ring does behind the caller's: one
// of the two sees the other's.
void Alarm::Listen() {
  listens_.store(true, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

bool Alarm::Sleep(int descriptor, int64_t nanoseconds_max) {
  pollfd watched[] = {{event_.get(), POLLIN, 0}, {descriptor, POLLIN, 0}};
  const timespec duration = {nanoseconds_max / kSecondInNanoseconds,
                             nanoseconds_max % kSecondInNanoseconds};
  const int ready = ppoll(watched, 2, &duration, nullptr);
  if ((watched[0].revents & POLLIN) != 0) {
    uint64_t rings = 0;
    // Emptied first: who rings between the two leaves a second event, and one look too many.
    [[maybe_unused]] const ssize_t got = read(event_.get(), &rings, sizeof(rings));
    rung_.store(false, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  return ready != 0;
}

void Alarm::RingListener() {
  if (rung_.exchange(true, std::memory_order_acq_rel)) return;
  const uint64_t ring = 1;
  [[maybe_unused]] const ssize_t put = write(event_.get(), &ring, sizeof(ring));
}

}  // namespace coordd
