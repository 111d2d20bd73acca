// Tells callers of all jobs, which takes several turns of the coordinator. (io)
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "coordd/v1/admin.pb.h"
#include "server/job/coordinator_state.h"
#include "server/model/access_rules.h"

namespace coordd {

class CallerShares;
class Inbox;

// Thread-safe. One call after the other, so that one answer is begun at a time, and callers in
// turns. A turn goes on with parts for kTurn: it is short however many ask and however many jobs
// there are, and those who have gone or had their share cost next to nothing.
class StateTeller {
 public:
  // What coordctl takes of an answer is more than this.
  static constexpr size_t kBytesMax = size_t{64} << 20;
  // Beside the one that is told, for each account (AccountOf).
  static constexpr size_t kWaitingMax = 16;
  static constexpr absl::Duration kTurn = absl::Milliseconds(5);

  struct Call {
    std::shared_ptr<const Caller> caller;
    const v1::GetStateRequest* request;  // lives, as the answer, until it is finished
    v1::ServerState* state;
    std::function<bool()> is_cancelled;
    // By whoever has the turn, or by whoever has called Tell; must not block. Statuses: those of
    // CoordinatorState::DescribeTo, RESOURCE_EXHAUSTED (CallerShares, more than kWaitingMax, or the
    // answer would have more than kBytesMax), CANCELLED, UNAVAILABLE (coordd is stopping or busy).
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
  using Waiting = std::deque<Call>;

  void AskForTurn();
  void TakePart(const CoordinatorState& state, absl::Time now);
  // The next call is the one that is told. False: there is none, and no turn is asked for.
  bool TakeNext();
  // Whether there is another part of it.
  absl::StatusOr<bool> TellPart(Telling& one, const CoordinatorState& state, absl::Time now);

  // Constant after construction.
  const size_t bytes_max_;

  // Thread-safe by themselves.
  CallerShares& shares_;
  Inbox& inbox_;

  // Touched by whoever has the turn that was asked for.
  std::unique_ptr<Telling> told_;

  // Guarded by mu_.
  Mutex mu_;
  bool has_asked_ ABSL_GUARDED_BY(mu_) = false;                  // for a turn, which is to come
  std::map<std::string, Waiting> waiting_ ABSL_GUARDED_BY(mu_);  // by account, none empty
  std::string last_ ABSL_GUARDED_BY(mu_);                        // account that had its turn
};

}  // namespace coordd
