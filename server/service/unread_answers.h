// What sessions make coordd keep because they do not read what they are answered: of one caller,
// and of all.
#pragma once

#include <grpcpp/support/slice.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "common/base/mutex.h"
#include "server/model/access_rules.h"

namespace coordd {

struct UnreadBounds {
  int64_t of_one = int64_t{64} << 20;
  int64_t of_all = int64_t{192} << 20;
  // What each session may have unread when its caller, or all, are at these bounds: half of it at
  // twice the bound, and so on, so that many sessions have little each.
  int64_t of_session = 64 << 10;
};

// Thread-safe. What it has handed out may outlive it.
class UnreadAnswers {
  struct Sum {
    std::atomic<int64_t> bytes = 0;
  };

 public:
  // Beyond so many times the bounds a session is ended instead of held up.
  static constexpr int64_t kEndsAt = 3;

  explicit UnreadAnswers(const UnreadBounds& bounds = {});

  // What the sessions of one caller have not read.
  class OfOne {
   public:
    void Add(int64_t bytes) { Count(bytes); }  // or what there is no more, negative
    // Memory for what may be sent to many: counted once, until nobody needs it any more, be it an
    // outbox or gRPC.
    grpc::Slice NewSlice(size_t bytes) const;
    // Whether a session with so much unread says nothing more until it has read.
    bool HoldsUp(int64_t session_bytes) const { return IsOver(session_bytes, 1); }
    // Whether it is ended, since more is coming than even those who are held up may have.
    bool Ends(int64_t session_bytes) const { return IsOver(session_bytes, kEndsAt); }

    // "193 of worker/train7's 64 MiB and 201 of all 192 MiB".
    std::string Text() const;

   private:
    friend class UnreadAnswers;
    OfOne(std::string account, const UnreadBounds& bounds, std::shared_ptr<Sum> all)
        : account_(std::move(account)), bounds_(bounds), all_(std::move(all)) {}
    void Count(int64_t bytes) const {
      own_->bytes.fetch_add(bytes, std::memory_order_relaxed);
      all_->bytes.fetch_add(bytes, std::memory_order_relaxed);
    }
    bool IsOver(int64_t session_bytes, int64_t times) const;

    const std::string account_;
    const UnreadBounds bounds_;
    const std::shared_ptr<Sum> own_ = std::make_shared<Sum>();
    const std::shared_ptr<Sum> all_;
  };

  std::shared_ptr<OfOne> Of(const Caller& caller);
  int64_t bytes() const { return all_->bytes.load(std::memory_order_relaxed); }

 private:
  // Constant after construction.
  const UnreadBounds bounds_;
  const std::shared_ptr<Sum> all_;

  // Guarded by mu_.
  Mutex mu_;
  absl::flat_hash_map<std::string, std::shared_ptr<OfOne>> of_ ABSL_GUARDED_BY(mu_);
  size_t sweep_at_ ABSL_GUARDED_BY(mu_) = 4096;  // when there are so many
};

}  // namespace coordd
