#include "server/door/shared_budget.h"

#include <algorithm>

namespace coordd {

void SharedBudget::Give(Bucket& bucket, absl::Time now) const {
  const double seconds = std::max(absl::ToDoubleSeconds(now - bucket.given_at), 0.0);
  bucket.tokens = std::min(burst_, bucket.tokens + seconds * per_second_);
  bucket.given_at = std::max(now, bucket.given_at);
}

bool SharedBudget::Spend(double tokens, absl::Time now) {
  MutexLock lock(&mu_);
  Give(sent_, now);
  // What is refused is not owed: who has been closed has nothing to pay for.
  if (sent_.tokens < tokens) return false;
  sent_.tokens -= tokens;
  return true;
}

void SharedBudget::LeftOpen(double calls, absl::Time now) {
  MutexLock lock(&mu_);
  Give(left_open_, now);
  // Owed, since they were begun: but for a minute at most.
  left_open_.tokens = std::max(left_open_.tokens - calls, -60 * per_second_);
}

bool SharedBudget::MayHaveMany(absl::Time now) {
  MutexLock lock(&mu_);
  Give(left_open_, now);
  return left_open_.tokens > 0;
}

bool SharedBudget::AddOpenCall() {
  if (open_calls_.fetch_add(1, std::memory_order_relaxed) < kOpenCallsMax) return true;
  open_calls_.fetch_sub(1, std::memory_order_relaxed);
  return false;
}

bool OpenCalls::Add(absl::Time now) {
  if (budget_ == nullptr) return true;
  if (!budget_->MayHaveMany(now) || !budget_->AddOpenCall()) return false;
  ++count_;
  return true;
}

void OpenCalls::Remove() {
  if (budget_ == nullptr || count_ == 0) return;
  --count_;
  budget_->RemoveOpenCalls(1);
}

bool SharedBudget::IsFull(absl::Time now) {
  MutexLock lock(&mu_);
  Give(sent_, now);
  Give(left_open_, now);
  return sent_.tokens >= burst_ && left_open_.tokens >= burst_;
}

std::shared_ptr<SharedBudget> SharedBudgets::Of(const std::string& client, absl::Time now) {
  MutexLock lock(&mu_);
  if (budgets_.size() >= sweep_at_) {
    absl::erase_if(budgets_, [now](const auto& one) {
      return one.second.use_count() == 1 && one.second->IsFull(now);
    });
    sweep_at_ = kSweepFrom + 2 * budgets_.size();
  }
  std::shared_ptr<SharedBudget>& budget = budgets_[client];
  if (budget == nullptr) budget = std::make_shared<SharedBudget>(kBurst, kPerSecond, now);
  return budget;
}

size_t SharedBudgets::size() {
  MutexLock lock(&mu_);
  return budgets_.size();
}

}  // namespace coordd
