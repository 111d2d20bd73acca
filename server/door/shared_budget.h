// What all connections of one client may send of what costs gRPC most: who is closed and comes
// again has no more than before.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace coordd {

// Thread-safe.
class SharedBudget {
 public:
  SharedBudget(double burst, double per_second, absl::Time now)
      : burst_(burst), per_second_(per_second), sent_{burst, now}, left_open_{burst, now} {}

  // Calls at a time that all connections of a client may have beside those that each may have.
  static constexpr int64_t kOpenCallsMax = 8192;

  // False: they are spent.
  bool Spend(double tokens, absl::Time now);
  // One more call at a time, or fewer. False: there are as many as may be.
  bool AddOpenCall();
  // A connection has ended with so many calls under way, which cost gRPC as much as resets: once
  // there were too many, each connection has its first ones only.
  void LeftOpen(double calls, absl::Time now);
  bool MayHaveMany(absl::Time now);
  void RemoveOpenCalls(int64_t count) { open_calls_.fetch_sub(count, std::memory_order_relaxed); }
  bool IsFull(absl::Time now);

 private:
  struct Bucket {
    double tokens = 0;
    absl::Time given_at;
  };
  void Give(Bucket& bucket, absl::Time now) const;

  const double burst_, per_second_;

  // Thread-safe by itself.
  std::atomic<int64_t> open_calls_ = 0;

  // Guarded by mu_.
  Mutex mu_;
  Bucket sent_ ABSL_GUARDED_BY(mu_);
  Bucket left_open_ ABSL_GUARDED_BY(mu_);
};

// The calls of one connection that are counted with those of others; given back at its end. Not
// thread-safe.
class OpenCalls {
 public:
  // May be null: then nothing is counted.
  explicit OpenCalls(std::shared_ptr<SharedBudget> budget) : budget_(std::move(budget)) {}
  OpenCalls(OpenCalls&& other) noexcept
      : budget_(std::move(other.budget_)), count_(std::exchange(other.count_, 0)) {}
  OpenCalls& operator=(OpenCalls&& other) noexcept {
    std::swap(budget_, other.budget_);
    std::swap(count_, other.count_);
    return *this;
  }
  ~OpenCalls() {
    if (budget_ != nullptr) budget_->RemoveOpenCalls(count_);
  }

  bool Add(absl::Time now);
  void Remove();
  int64_t count() const { return count_; }

 private:
  std::shared_ptr<SharedBudget> budget_;
  int64_t count_ = 0;
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
