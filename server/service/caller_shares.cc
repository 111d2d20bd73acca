#include "server/service/caller_shares.h"

#include <algorithm>
#include <atomic>

#include "absl/strings/str_cat.h"
#include "common/base/duration_text.h"
#include "common/base/one_line.h"
#include "server/door/caller.h"
#include "server/model/validate_message.h"

namespace coordd {
namespace {

// False: there are as many as may be.
bool Take(std::atomic<int64_t>& held, int64_t bytes, int64_t most) {
  // One answer is always let through, however large.
  const int64_t before = held.fetch_add(bytes, std::memory_order_relaxed);
  if (before == 0 || before + bytes <= most) return true;
  held.fetch_sub(bytes, std::memory_order_relaxed);
  return false;
}

std::string TextOf(const CallerShares::Asked& asked) {
  return absl::StrCat(asked.call, " of ",
                      asked.job.empty() ? std::string("all jobs")
                                        : absl::StrCat("job ", OneLine(Truncated(asked.job, 128))));
}

}  // namespace

struct CallerShares::Share {
  explicit Share(absl::Time now) : given_at(now) {}

  // Thread-safe by itself.
  std::atomic<int64_t> answer_bytes = 0;

  // Guarded by CallerShares::mu_.
  absl::Duration turns = kTurns;
  absl::Time given_at;

  void Give(absl::Time now) {
    if (now > given_at) turns = std::min(kTurns, turns + (now - given_at) * kTurnsPerSecond);
    given_at = std::max(now, given_at);
  }
};

struct CallerShares::All {
  std::atomic<int64_t> answer_bytes = 0;
};

CallerShares::CallerShares(Clock& clock) : clock_(clock), all_(std::make_shared<All>()) {}

CallerShares::AnswerBytes::~AnswerBytes() {
  if (share_ == nullptr) return;
  share_->answer_bytes.fetch_sub(bytes_, std::memory_order_relaxed);
  all_->answer_bytes.fetch_sub(bytes_, std::memory_order_relaxed);
}

std::shared_ptr<CallerShares::Share> CallerShares::Of(const Caller& caller) {
  const absl::Time now = clock_.Now();
  MutexLock lock(&mu_);
  if (shares_.size() >= sweep_at_) {
    absl::erase_if(shares_, [now](const auto& one) {
      one.second->Give(now);
      return one.second.use_count() == 1 && one.second->turns >= kTurns;
    });
    sweep_at_ = 4096 + 2 * shares_.size();
  }
  std::shared_ptr<Share>& share = shares_[AccountOf(caller)];
  if (share == nullptr) share = std::make_shared<Share>(now);
  return share;
}

absl::Status CallerShares::InTurn(const Caller& caller, const Asked& asked,
                                  absl::FunctionRef<void()> what) {
  const std::shared_ptr<Share> share = Of(caller);
  const absl::Time begun = clock_.Now();
  {
    MutexLock lock(&mu_);
    share->Give(begun);
    if (share->turns <= absl::ZeroDuration()) {
      return absl::ResourceExhaustedError(absl::StrCat(
          TextOf(asked), " was not carried out: what ", AccountOf(caller),
          " has called has taken coordd ", DurationText(-share->turns), " longer than it may, ",
          DurationText(kTurns), " at once and then ", 100 * kTurnsPerSecond,
          " % of the time: try again in ",
          DurationText(absl::Ceil(-share->turns / kTurnsPerSecond, absl::Milliseconds(1)) +
                       absl::Milliseconds(1))));
    }
  }
  what();
  const absl::Time ended = clock_.Now();
  if (ended - begun <= kFree) return absl::OkStatus();
  MutexLock lock(&mu_);
  share->turns -= ended - begun - kFree;
  return absl::OkStatus();
}

void CallerShares::GoOn(const Caller& caller, absl::FunctionRef<void()> what) {
  const std::shared_ptr<Share> share = Of(caller);
  const absl::Time begun = clock_.Now();
  what();
  const absl::Time ended = clock_.Now();
  MutexLock lock(&mu_);
  share->turns -= ended - begun;
}

absl::StatusOr<CallerShares::AnswerBytes> CallerShares::HoldAnswer(const Caller& caller,
                                                                   const Asked& asked,
                                                                   int64_t bytes) {
  if (bytes < kCountedBytes) return AnswerBytes();
  std::shared_ptr<Share> share = Of(caller);
  if (!Take(share->answer_bytes, bytes, kAnswerBytes)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the answer to ", TextOf(asked), ", ", bytes, " bytes, is left out: ", AccountOf(caller),
        " has not read ", share->answer_bytes.load(), " bytes of its answers, the most are ",
        kAnswerBytes));
  }
  if (!Take(all_->answer_bytes, bytes, kAllAnswerBytes)) {
    share->answer_bytes.fetch_sub(bytes, std::memory_order_relaxed);
    return absl::ResourceExhaustedError(
        absl::StrCat("the answer to ", TextOf(asked), ", ", bytes,
                     " bytes, is left out: all who call have not read ", all_->answer_bytes.load(),
                     " bytes of their answers, the most are ", kAllAnswerBytes));
  }
  return AnswerBytes(std::move(share), all_, bytes);
}

}  // namespace coordd
