// What the jobs of one owner take of coordd's memory, together.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace coordd {

// What a worker says of itself costs nothing up to here: of one that sees eight GPUs it is less.
inline constexpr int64_t kUsualWordBytes = 4 << 10;
inline int64_t BeyondUsual(int64_t bytes) { return std::max<int64_t>(bytes - kUsualWordBytes, 0); }

// What there is room for of each worker of the largest job that waits for its generation: one that
// has a GPU and three labels of a topology takes less.
inline constexpr int64_t kWaitingWorkerBytes = 4 << 10;

// What a key of the store takes besides: a node of the map, two strings' heads and their
// allocations.
inline constexpr int64_t kKeyBytes = 192;

// PURE. Not thread-safe. Shared by what takes of it, each with a BudgetShare.
//
// What is pending and stored takes of it. Three things have bounds beside it, so that none is
// refused because of another.
class ByteBudget {
 public:
  // `workers`: of the largest job. All of it may wait at once, whatever the limit is.
  explicit ByteBudget(int64_t limit, int64_t workers = 0)
      : limit_(limit),
        words_(new ByteBudget(Part{limit / 4})),
        names_(new ByteBudget(Part{limit / 4})),
        joins_(new ByteBudget(Part{std::max(limit / 2, workers * kWaitingWorkerBytes)})) {}

  int64_t used() const { return used_; }
  int64_t limit() const { return limit_; }
  // What workers say of themselves beyond what is usual.
  const std::shared_ptr<ByteBudget>& words() const { return words_; }
  // Names of tensors that are kept though they are not pending.
  const std::shared_ptr<ByteBudget>& names() const { return names_; }
  // Workers that have joined and are in no generation yet.
  const std::shared_ptr<ByteBudget>& joins() const { return joins_; }

 private:
  friend class BudgetShare;

  struct Part {
    int64_t limit = 0;
  };
  explicit ByteBudget(Part part) : limit_(part.limit) {}

  const int64_t limit_;
  int64_t used_ = 0;
  const std::shared_ptr<ByteBudget> words_, names_, joins_;
};

// PURE. Not thread-safe. What one part takes of a budget, until it is gone; of none: without a
// limit.
class BudgetShare {
 public:
  BudgetShare() = default;
  explicit BudgetShare(std::shared_ptr<ByteBudget> budget) : budget_(std::move(budget)) {}
  BudgetShare(const BudgetShare&) = delete;
  BudgetShare& operator=(const BudgetShare&) = delete;
  BudgetShare(BudgetShare&& other) noexcept
      : budget_(std::move(other.budget_)), bytes_(std::exchange(other.bytes_, 0)) {}
  ~BudgetShare() { Set(0); }

  // From now on it takes of this one.
  void Bind(std::shared_ptr<ByteBudget> budget) {
    const int64_t bytes = bytes_;
    Set(0);
    budget_ = std::move(budget);
    Set(bytes);
  }
  int64_t bytes() const { return bytes_; }
  void Set(int64_t bytes) {
    if (budget_ != nullptr) budget_->used_ += bytes - bytes_;
    bytes_ = bytes;
  }
  // So many of its bytes are another's from now on, of the same budget.
  BudgetShare Split(int64_t bytes) {
    BudgetShare part(budget_);
    part.bytes_ = bytes;
    bytes_ -= bytes;
    return part;
  }
  // Whether it may take so many more.
  bool HasRoomFor(int64_t more) const {
    return budget_ == nullptr || budget_->used_ + more <= budget_->limit_;
  }
  // What to say where there is none. `whose`: "job train".
  std::string NoRoom(absl::string_view whose) const {
    return absl::StrCat("the jobs of the owner of ", whose, " take ", limit(),
                        " bytes of this coordd together, the most that they may "
                        "(--max-bytes-per-owner)");
  }
  // The limit; 0: none.
  int64_t limit() const { return budget_ == nullptr ? 0 : budget_->limit_; }

 private:
  std::shared_ptr<ByteBudget> budget_;
  int64_t bytes_ = 0;
};

}  // namespace coordd
