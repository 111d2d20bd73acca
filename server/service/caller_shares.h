// What one caller may take of coordd at a time: of its turns, and of memory for answers that wait
// to be read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "server/model/access_rules.h"

namespace coordd {

// Thread-safe. A caller is the name of a certificate, or without TLS an address, however many
// connections it has.
class CallerShares {
 public:
  // What takes longer than kFree in a turn is counted. Beyond kTurns at once, and kTurnsPerSecond
  // as time goes on, the caller has to wait.
  static constexpr absl::Duration kFree = absl::Milliseconds(1);
  static constexpr absl::Duration kTurns = absl::Milliseconds(200);
  static constexpr double kTurnsPerSecond = 0.1;
  // Answers of at least kCountedBytes, until they are written or given up.
  static constexpr int64_t kCountedBytes = 4 << 10;
  static constexpr int64_t kAnswerBytes = int64_t{64} << 20;
  static constexpr int64_t kAllAnswerBytes = int64_t{256} << 20;  // of all callers

  // `clock` outlives it.
  explicit CallerShares(Clock& clock);
  Clock& clock() const { return clock_; }

  // What is called, and for which job; empty: for all. For the sentence of a refusal.
  struct Asked {
    absl::string_view call, job;
  };

  // Does `what`, which takes part of a turn. RESOURCE_EXHAUSTED: the caller has had its share, and
  // nothing was done.
  absl::Status InTurn(const Caller& caller, const Asked& asked, absl::FunctionRef<void()> what);
  // Does more of what InTurn has begun, in a turn that comes after: all of it is counted.
  void GoOn(const Caller& caller, absl::FunctionRef<void()> what);

  // Memory of an answer, while this lives. May outlive CallerShares.
  class AnswerBytes;
  // RESOURCE_EXHAUSTED: the caller has not read what it was answered before, or all have not.
  absl::StatusOr<AnswerBytes> HoldAnswer(const Caller& caller, const Asked& asked, int64_t bytes);

 private:
  struct Share;
  struct All;

  std::shared_ptr<Share> Of(const Caller& caller);

  // Constant after construction.
  Clock& clock_;
  const std::shared_ptr<All> all_;

  // Guarded by mu_.
  Mutex mu_;
  absl::flat_hash_map<std::string, std::shared_ptr<Share>> shares_ ABSL_GUARDED_BY(mu_);
  size_t sweep_at_ ABSL_GUARDED_BY(mu_) = 4096;  // when there are so many
};

class CallerShares::AnswerBytes {
 public:
  AnswerBytes() = default;
  AnswerBytes(AnswerBytes&& other) noexcept
      : share_(std::move(other.share_)),
        all_(std::move(other.all_)),
        bytes_(std::exchange(other.bytes_, 0)) {}
  AnswerBytes& operator=(AnswerBytes&& other) noexcept {
    std::swap(share_, other.share_);
    std::swap(all_, other.all_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~AnswerBytes();

 private:
  friend class CallerShares;
  AnswerBytes(std::shared_ptr<Share> share, std::shared_ptr<All> all, int64_t bytes)
      : share_(std::move(share)), all_(std::move(all)), bytes_(bytes) {}

  std::shared_ptr<Share> share_;
  std::shared_ptr<All> all_;
  int64_t bytes_ = 0;
};

}  // namespace coordd
