// A rank of `coordd-bench rendezvous`: joins, has one barrier, says when. Prints one line: the
// moments at which main began, it was a member, and the barrier was over, in nanoseconds of the
// monotonic clock.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "coordd/coordd.h"

namespace {

void Check(coordd_status_t status) {
  if (status == COORDD_OK) return;
  std::fprintf(stderr, "rendezvous_rank: %s\n", coordd_last_error());
  std::exit(1);
}

long long NowNs() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

}  // namespace

int main() {
  const long long main_ns = NowNs();
  coordd_worker_t* worker = nullptr;
  Check(coordd_worker_start(nullptr, &worker));
  const long long joined_ns = NowNs();
  Check(coordd_barrier(worker, nullptr, nullptr));
  std::printf("%lld %lld %lld\n", main_ns, joined_ns, NowNs());
  std::fflush(stdout);
  Check(coordd_worker_shutdown(worker, 10));
  coordd_worker_destroy(worker);
  return 0;
}
