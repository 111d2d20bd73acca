// Where everything that wants a decision waits for a turn of the coordinator.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "absl/types/span.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "server/generation/wake_rule.h"
#include "server/job/coordinator_state.h"
#include "server/service/waiting_line.h"

namespace coordd {

// A question to the state, answered by whoever has the turn; must not block. Called exactly once
// if it was accepted, also when coordd stops.
using Query = std::function<void(const CoordinatorState& state, absl::Time now)>;

// Thread-safe. Turns of the coordinator are taken one at a time: by its thread, or by the thread
// that brings the last report that others have waited for, or a call of the store, which then need
// wake nobody. What is worth no turn by itself (WakeRule) waits for more, kHold at most.
class Inbox {
 public:
  // In order. Shared, since the same comes again and again.
  using Together = std::shared_ptr<const std::vector<Inbound>>;
  using Item = std::variant<Inbound, Query, Together>;
  struct Received {
    Item item;
    absl::Time at;
  };

  // Some hundred bytes to some kilobytes each, and a turn takes all of them.
  static constexpr size_t kCapacity = 4096;
  // Of small messages (MessageSize) a turn takes so much, and so much of others, so that it is
  // short whatever they are; a single one may be larger.
  static constexpr size_t kSmallTurnCost = size_t{1} << 20;
  static constexpr size_t kTurnCost = size_t{256} << 10;
  // Of members whose streams were lost so many are told in a turn, and the others later, for which
  // nobody else waits. One may come back before its loss is told: a loss is often noticed late.
  static constexpr size_t kLostInTurn = 1024;
  // So that the coordinator works while others still come.
  static constexpr size_t kHeldMax = 32;
  // So late at most errors and stalls are seen.
  static constexpr absl::Duration kHold = absl::Milliseconds(5);

  explicit Inbox(Clock& clock, size_t capacity = kCapacity) : clock_(clock), capacity_(capacity) {}

  // What takes a turn on a thread that brings a report: TakeTurn, the state, EndTurn. Called
  // without a lock; must not block. Set before anything is offered; without one there are no such
  // turns.
  void SetTurn(std::function<void()> turn) { turn_ = std::move(turn); }

  // How a message of a session comes: its size, and whether it has waited and this is its turn
  // (WaitForRoom). What comes without one is a call, which cannot wait: it is taken while
  // there is room, whoever waits.
  struct Arrival {
    MessageSize size = {};
    bool has_waited = false;
  };
  // What a client sent. False when full, while others of its kind wait, or closed: `item` is then
  // untouched.
  bool Offer(Item&& item, const Arrival& arrival);
  bool Offer(Item&& item);
  // The same for what its sender waits for: takes a turn at once, unless somebody has it.
  bool OfferAndTurn(Item&& item);
  // Offers a message that says what is ready. May take a turn.
  bool Offer(Item&& item, const Arrival& arrival, const WakeRule::Report& report);

  // For a message that is not small, before it is read: whether there is room for it now, which is
  // then its own (Arrival::has_waited). So of what waits for room only bytes are there.
  bool Reserve(const MessageSize& size);

  // For a session whose message was not taken: `resume` is called on the coordinator thread after
  // one of its next turns, when there is room, and offers it as one that has waited. At most one
  // per session, which is what bounds it. False when closed: it is not called then.
  bool WaitForRoom(WaitingLine::Place place);

  // What must not be lost and is bounded by its cause: the end of a session or call, a stop.
  bool Push(Item&& item);

  // Makes the coordinator take a turn, e.g. to look at a deadline that is new.
  void Wake();

  // For the coordinator thread: waits for something that is worth a turn, for the deadline of the
  // last one, or for the end. Its turn then begins; false: closed and drained, and none does.
  bool AwaitTurn();
  // For whoever has the turn. Everything that has come, in order, into `taken`, which is empty; but
  // not the loss of more members than are told in a turn (kLostInTurn).
  void TakeAll(std::vector<Received>& taken);
  // What the state says at the end of the turn, and when the next one is due whatever comes.
  void EndTurn(absl::Span<const MembersReports> jobs, absl::Time deadline);
  // Who may offer now, in order. Where others go on waiting, there will be another turn.
  std::vector<std::function<void()>> TakeWaiting();

  // No offer is taken from now on; what was taken is still handed out.
  void Close();
  size_t size() const;

 private:
  bool Add(Item&& item, const Arrival* arrival);
  bool HasRoomLocked(const Arrival* arrival) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TakeUpToLost(std::vector<Received>& taken) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TakeLocked(Item&& item, const Arrival* arrival, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Time NextLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Constant after construction, and SetTurn.
  Clock& clock_;
  const size_t capacity_;
  std::function<void()> turn_;

  // Guarded by mu_.
  mutable Mutex mu_;
  CondVar came_;
  std::vector<Received> items_ ABSL_GUARDED_BY(mu_);
  WakeRule rule_ ABSL_GUARDED_BY(mu_);
  bool has_lost_ ABSL_GUARDED_BY(mu_) = false;  // there is a StreamsLost
  bool is_due_ ABSL_GUARDED_BY(mu_) = false;    // something in items_ is worth a turn
  bool in_turn_ ABSL_GUARDED_BY(mu_) = false;   // somebody has it
  absl::Time deadline_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  absl::Time asleep_until_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  // Of items_, in bytes (MessageSize::cost).
  struct {
    size_t small = 0;
    size_t large = 0;
  } cost_ ABSL_GUARDED_BY(mu_);
  WaitingLine waiting_ ABSL_GUARDED_BY(mu_);
};

}  // namespace coordd
