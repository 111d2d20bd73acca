#include "common/base/clock.h"

#include <chrono>

#include "absl/time/clock.h"

namespace coordd {
namespace {

class RealClock final : public Clock {
 public:
  RealClock() : wall_at_start_(absl::Now()), steady_at_start_(std::chrono::steady_clock::now()) {}

  absl::Time Now() override {
    return wall_at_start_ + absl::FromChrono(std::chrono::steady_clock::now() - steady_at_start_);
  }

  bool Await(Mutex* mu, CondVar* cv, absl::FunctionRef<bool()> condition,
             absl::Time deadline) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    while (!condition()) {
      const absl::Duration left = deadline - Now();
      if (left <= absl::ZeroDuration()) return false;
      cv->WaitFor(mu, left);
    }
    return true;
  }

 private:
  const absl::Time wall_at_start_;
  const std::chrono::steady_clock::time_point steady_at_start_;
};

}  // namespace

Clock& Clock::Real() {
  static RealClock* clock =
      new RealClock();  // never destroyed: threads may outlive static destructors
  return *clock;
}

}  // namespace coordd
