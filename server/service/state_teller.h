// Tells callers of all jobs, which takes several turns of the coordinator. (io)
#pragma once

#include <deque>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "coordd/v1/admin.pb.h"
#include "server/job/coordinator_state.h"
#include "server/model/access_rules.h"

namespace coordd {

class CallerShares;
class Inbox;

// Thread-safe. One caller after the other, and one part in a turn, so that a turn is short however
// many ask and however many jobs there are.
class StateTeller {
 public:
  // What coordctl takes of an answer is more than this.
  static constexpr size_t kBytesMax = size_t{64} << 20;

  struct Call {
    std::shared_ptr<const Caller> caller;
    const v1::GetStateRequest* request;  // lives, as the answer, until it is finished
    v1::ServerState* state;
    std::function<bool()> is_cancelled;
    // By whoever has the turn, or by whoever has called Tell; must not block. Statuses: those of
    // CoordinatorState::DescribeTo, RESOURCE_EXHAUSTED (CallerShares, or the answer would have more
    // than kBytesMax), CANCELLED, UNAVAILABLE (coordd is stopping or busy).
    std::function<void(const absl::Status&)> finish;
  };

  // Both outlive it.
  StateTeller(CallerShares& shares, Inbox& inbox, size_t bytes_max = kBytesMax)
      : bytes_max_(bytes_max), shares_(shares), inbox_(inbox) {}

  void Tell(Call call);

 private:
  struct Telling {
    Call call;
    CoordinatorState::ToldSoFar told;
    size_t bytes = 0;
  };

  void AskForTurn();
  void TakePart(const CoordinatorState& state, absl::Time now);
  // Whether there is another part of it.
  absl::StatusOr<bool> TellPart(Telling& one, const CoordinatorState& state, absl::Time now);

  // Constant after construction.
  const size_t bytes_max_;

  // Thread-safe by themselves.
  CallerShares& shares_;
  Inbox& inbox_;

  // Guarded by mu_. While there is one, a turn has been asked for.
  Mutex mu_;
  std::deque<std::unique_ptr<Telling>> waiting_ ABSL_GUARDED_BY(mu_);
};

}  // namespace coordd
