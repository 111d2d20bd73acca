// When a coordd that was started for one job ends by itself. PURE
#pragma once

#include <cstddef>
#include <string>

#include "absl/time/time.h"

namespace coordd {

struct EndRuleOptions {
  // Without any worker for so long.
  absl::Duration idle = absl::InfiniteDuration();
  // Once its owner has gone: for workers that are saying goodbye, or that learn why their job ends.
  // Whoever kills a run wants nothing of it left after 5 s.
  absl::Duration drain = absl::Seconds(4);
};

// One owner. Called whenever something may have changed, and at NextLook at the latest.
class EndRule {
 public:
  EndRule(const EndRuleOptions& options, absl::Time start)
      : options_(options), idle_since_(start) {}

  // `workers`: sessions that are open. `owner_gone`: whoever started coordd has ended, or has said
  // that the job is over. Returns why coordd is to end; empty: not yet.
  std::string Look(absl::Time now, size_t workers, bool owner_gone);
  absl::Time NextLook() const;

 private:
  const EndRuleOptions options_;
  absl::Time idle_since_;  // infinite: there are workers
  absl::Time drain_since_ = absl::InfiniteFuture();
  absl::Time last_look_ = absl::InfinitePast();
};

}  // namespace coordd
