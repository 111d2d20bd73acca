// Which of several coordds that stand by for each other serves. Pure but for the probe that it is
// given, and the clock.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/coordctl/target.h"
#include "common/base/clock.h"

namespace coordd {

// What is at an address: as ProbeCoordinator.
using ProbeAddress = std::function<absl::Status(const std::string& address)>;

// How long one may take to follow another one that has ended.
inline constexpr absl::Duration kServesWithin = absl::Seconds(5);

// The first of the target's addresses at which one serves; looks again for kServesWithin, as while
// a standby takes over. UNAVAILABLE: none does. FAILED_PRECONDITION, UNAUTHENTICATED: none does,
// and at one of them waiting mends nothing. Each says what was found at each address.
absl::StatusOr<Target> ServingOne(const Target& target, const ProbeAddress& probe, Clock& clock);

}  // namespace coordd
