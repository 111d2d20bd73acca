// What all connections of one client may send of what costs gRPC most: who is closed and comes
// again has no more than before.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace coordd {

// Thread-safe.
class SharedBudget {
 public:
  SharedBudget(double burst, double per_second, absl::Time now)
      : burst_(burst), per_second_(per_second), tokens_(burst), given_at_(now) {}

  // False: they are spent.
  bool Spend(double tokens, absl::Time now);
  bool IsFull(absl::Time now);

 private:
  void GiveLocked(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const double burst_, per_second_;

  // Guarded by mu_.
  Mutex mu_;
  double tokens_ ABSL_GUARDED_BY(mu_);
  absl::Time given_at_ ABSL_GUARDED_BY(mu_);
};

// Thread-safe. Those of clients, by what they are known by. One that nobody has any more and that
// is full again is forgotten.
class SharedBudgets {
 public:
  // Of calls that are reset or have no message. An honest client has few: those of a node whose
  // workers are all killed, or of waits that are given up.
  static constexpr double kBurst = 1000, kPerSecond = 200;

  std::shared_ptr<SharedBudget> Of(const std::string& client, absl::Time now);
  size_t size();

 private:
  static constexpr size_t kSweepFrom = 4096;

  // Guarded by mu_.
  Mutex mu_;
  absl::flat_hash_map<std::string, std::shared_ptr<SharedBudget>> budgets_ ABSL_GUARDED_BY(mu_);
  size_t sweep_at_ ABSL_GUARDED_BY(mu_) = kSweepFrom;  // when there are so many
};

}  // namespace coordd
