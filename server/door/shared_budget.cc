#include "server/door/shared_budget.h"

#include <algorithm>

namespace coordd {

void SharedBudget::GiveLocked(absl::Time now) {
  const double seconds = std::max(absl::ToDoubleSeconds(now - given_at_), 0.0);
  tokens_ = std::min(burst_, tokens_ + seconds * per_second_);
  given_at_ = std::max(now, given_at_);
}

bool SharedBudget::Spend(double tokens, absl::Time now) {
  MutexLock lock(&mu_);
  GiveLocked(now);
  // What is refused is not owed: who has been closed has nothing to pay for.
  if (tokens_ < tokens) return false;
  tokens_ -= tokens;
  return true;
}

bool SharedBudget::IsFull(absl::Time now) {
  MutexLock lock(&mu_);
  GiveLocked(now);
  return tokens_ >= burst_;
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
