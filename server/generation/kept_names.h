// What a generation keeps of tensors that are not pending: what slots mean, steps that may repeat,
// schedules.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "common/protocol/tensor_spec.h"
#include "server/model/byte_budget.h"

namespace coordd {

// PURE. Not thread-safe. Counts it for the owner of the job, who has a bound of all that his jobs
// keep. It is kept for speed only: beyond the bound tensors are negotiated by name, each time.
class KeptNames {
 public:
  // What a tensor takes where it is kept once, about.
  static int64_t CostOf(const TensorSpec& spec) {
    constexpr int64_t kBytes = 320, kNames = 3;  // a spec and a key, and what refers to it
    return kBytes + kNames * static_cast<int64_t>(spec.name.size()) +
           static_cast<int64_t>(spec.group.size() + spec.refused.size() +
                                sizeof(int64_t) * spec.shape.size());
  }

  // `budget`: of the owner; null: no bound.
  explicit KeptNames(const std::shared_ptr<ByteBudget>& budget)
      : share_(budget == nullptr ? nullptr : budget->names()) {}
  KeptNames(const KeptNames&) = delete;
  KeptNames& operator=(const KeptNames&) = delete;

  bool HasRoomFor(int64_t bytes) const { return share_.HasRoomFor(bytes); }
  // Bytes of one part, as long as it lives.
  class Hold {
   public:
    Hold() = default;
    explicit Hold(KeptNames& of) : of_(&of) {}
    Hold(Hold&& other) noexcept
        : of_(std::exchange(other.of_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
    Hold& operator=(Hold&& other) noexcept {
      std::swap(of_, other.of_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Hold() { Set(0); }

    // False, and nothing has happened: there is no room.
    bool Add(int64_t bytes) {
      if (of_ != nullptr && !of_->HasRoomFor(bytes)) return false;
      Set(bytes_ + bytes);
      return true;
    }
    // Also where there is no room.
    void Set(int64_t bytes) {
      if (of_ != nullptr) of_->Count(bytes - bytes_);
      bytes_ = bytes;
    }
    int64_t bytes() const { return bytes_; }
    // Whether nothing may be kept for speed alone.
    bool is_full() const {
      constexpr int64_t kLittle = 4 << 10;
      return of_ != nullptr && !of_->HasRoomFor(kLittle);
    }

   private:
    KeptNames* of_ = nullptr;  // null: nobody counts
    int64_t bytes_ = 0;
  };

 private:
  void Count(int64_t more) { share_.Set(bytes_ += more); }

  int64_t bytes_ = 0;
  BudgetShare share_;
};

}  // namespace coordd
