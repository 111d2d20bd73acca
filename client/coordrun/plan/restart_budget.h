// How often, and how soon, workers that have failed are started again. PURE
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>

#include "absl/time/time.h"
#include "client/coordrun/plan/run_options.h"

namespace coordd {

// Not thread-safe. Grants --max-restarts restarts in all, or any number where hosts come and go and
// nobody says how many.
class RestartBudget {
 public:
  static constexpr absl::Duration kForgivenAfter = absl::Minutes(10);

  explicit RestartBudget(const RunOptions& options)
      : cooldown_min_(options.cooldown_min),
        cooldown_max_(options.cooldown_max),
        left_(!options.discovery_script.empty() && options.max_restarts == 0
                  ? std::numeric_limits<int32_t>::max()
                  : options.max_restarts) {}

  // Of one that has failed after `ran`: how long its slot rests. nullopt: it stays lost. `strikes`:
  // of this slot, failures in a row, each soon after a start: they double the wait. Of the slot
  // alone: others on its host go on, and are used again.
  std::optional<absl::Duration> Take(absl::Duration ran, int32_t& strikes) {
    if (left_ == 0) return std::nullopt;
    --left_;
    constexpr int32_t kMostDoublings = 20;
    if (ran >= kForgivenAfter) strikes = 0;
    const int32_t doublings = std::min(strikes++, kMostDoublings);
    return std::min(cooldown_min_ * (1 << doublings), cooldown_max_);
  }

 private:
  const absl::Duration cooldown_min_, cooldown_max_;
  int32_t left_;
};

}  // namespace coordd
