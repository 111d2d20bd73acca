// What coordd is told of calls and messages of comms: those that wait, and how many have ended.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/protocol/types.h"
#include "coordd/v1/session.pb.h"

namespace coordd {

// One that waits for other members.
struct WaitingCall {
  std::string comm;
  std::string call;  // "allreduce number 17": of a collective the same on all members
  absl::Time since;  // when this rank called it
  std::vector<int32_t> missing =
      {};  // ranks that have not come as far; empty: nobody can tell here
  // The comm's, where the call needs all members and `missing` cannot be told.
  std::optional<ProcessSetId> needs_all_of = std::nullopt;
};

// Of all comms of a worker, from one generation to the next. Thread-safe.
class CommCalls {
 public:
  // Of one comm; one thread at a time counts and waits.
  class Account {
   public:
    explicit Account(std::shared_ptr<CommCalls> all);
    ~Account();
    Account(const Account&) = delete;
    Account& operator=(const Account&) = delete;

    // A call of so many bytes has ended well. It costs two stores.
    void Count(int64_t bytes) {
      calls_.store(calls_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
      bytes_.store(bytes_.load(std::memory_order_relaxed) + bytes, std::memory_order_relaxed);
    }
    // It waits, until GoesOn. Each call replaces what was said before.
    void Waits(WaitingCall call);
    void GoesOn() {
      if (waits_.load(std::memory_order_relaxed)) Clear();
    }

   private:
    friend class CommCalls;
    void Clear();

    const std::shared_ptr<CommCalls> all_;
    std::atomic<int64_t> calls_ = 0, bytes_ = 0;
    std::atomic<bool> waits_ = false;

    // Guarded by mu_.
    Mutex mu_;
    WaitingCall call_ ABSL_GUARDED_BY(mu_);
  };

  struct Totals {
    int64_t calls = 0, bytes = 0;
  };

  // Of one that ends on any thread.
  void CountMessage(int64_t bytes) {
    messages_.fetch_add(1, std::memory_order_relaxed);
    message_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  }
  Totals totals() const;
  // Those that wait, in no order.
  std::vector<WaitingCall> Waiting() const;

 private:
  std::atomic<int64_t> messages_ = 0, message_bytes_ = 0;

  // Guarded by mu_.
  mutable Mutex mu_;
  std::set<Account*> accounts_ ABSL_GUARDED_BY(mu_);
  Totals closed_ ABSL_GUARDED_BY(mu_);  // of accounts that are gone
};

// Tells of those that have waited for a second, the oldest ones, each comm once.
void TellOfWaits(std::vector<WaitingCall> waiting, absl::Time now, v1::Heartbeat& heartbeat);

}  // namespace coordd
