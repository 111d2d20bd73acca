#include "server/service/state_copies.h"

#include <utility>

#include "server/service/coordinator.h"

namespace coordd {
namespace {

// A turn of the coordinator takes milliseconds; Prometheus waits ten seconds.
constexpr absl::Duration kTimeout = absl::Seconds(2);

}  // namespace

StateCopies::StateCopies(Coordinator& coordinator, Clock& clock,
                         std::function<void(v1::ServerState*)> complete)
    : coordinator_(coordinator), clock_(clock), complete_(std::move(complete)) {}

absl::StatusOr<StateCopies::State> StateCopies::Get() {
  const absl::Time asked_at = clock_.Now();
  MutexLock lock(&mu_);
  if (failed_at_ > asked_at) return failure_;
  if (last_ != nullptr && clock_.Now() < serves_until_) return last_;
  last_ = nullptr;  // two are not kept at a time
  absl::Duration took;
  auto described = coordinator_.Describe(clock_.Now() + kTimeout, &took);
  if (!described.ok()) {
    failed_at_ = clock_.Now();
    return failure_ = described.status();
  }
  auto made = std::make_shared<v1::ServerState>(*std::move(described));
  complete_(made.get());
  State state = std::move(made);
  if (took > kFree) {
    last_ = state;
    serves_until_ = clock_.Now() + (kShare - 1) * took;
  }
  return state;
}

}  // namespace coordd
