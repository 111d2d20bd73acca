#include "server/service/inbox.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <variant>

namespace coordd {
namespace {

Query Nothing() {
  return [](const CoordinatorState&, absl::Time) {};
}

StreamsLost* LossIn(Inbox::Item& item) {
  auto* const told = std::get_if<Inbound>(&item);
  return told == nullptr ? nullptr : std::get_if<StreamsLost>(told);
}

}  // namespace

// Who has waited was promised room.
bool Inbox::HasRoomLocked(const Arrival* arrival) const {
  if (arrival != nullptr && arrival->has_waited) return true;
  if (items_.size() >= capacity_) return false;
  if (arrival == nullptr) return true;
  if (waiting_.HasOf(arrival->size)) return false;
  const bool is_small = arrival->size.is_small();
  const size_t taken = is_small ? cost_.small : cost_.large;
  const size_t most = is_small ? kSmallTurnCost : kTurnCost;
  return taken == 0 || taken + arrival->size.cost() <= most;
}

void Inbox::TakeLocked(Item&& item, const Arrival* arrival, absl::Time now) {
  items_.push_back({std::move(item), now});
  if (arrival == nullptr) return;
  (arrival->size.is_small() ? cost_.small : cost_.large) += arrival->size.cost();
}

bool Inbox::Add(Item&& item, const Arrival* arrival) {
  const absl::Time now = clock_.Now();
  {
    MutexLock lock(&mu_);
    if (closed_ || !HasRoomLocked(arrival)) return false;
    TakeLocked(std::move(item), arrival, now);
    is_due_ = true;
  }
  came_.NotifyOne();
  return true;
}

bool Inbox::Offer(Item&& item) { return Add(std::move(item), nullptr); }

bool Inbox::Offer(Item&& item, const Arrival& arrival) { return Add(std::move(item), &arrival); }

bool Inbox::OfferAndTurn(Item&& item) {
  const absl::Time now = clock_.Now();
  bool mine = false;
  {
    MutexLock lock(&mu_);
    if (closed_ || !HasRoomLocked(nullptr)) return false;
    TakeLocked(std::move(item), nullptr, now);
    mine = !in_turn_ && turn_ != nullptr;
    if (mine) {
      in_turn_ = true;
    } else {
      is_due_ = true;
    }
  }
  if (mine) {
    turn_();
  } else {
    came_.NotifyOne();
  }
  return true;
}

bool Inbox::Offer(Item&& item, const Arrival& arrival, const WakeRule::Report& report) {
  const absl::Time now = clock_.Now();
  bool wake = false, mine = false;
  {
    MutexLock lock(&mu_);
    if (closed_ || !HasRoomLocked(&arrival)) return false;
    TakeLocked(std::move(item), &arrival, now);
    const WakeRule::Worth worth = rule_.Hear(report);
    if (worth == WakeRule::Worth::kCompletes && !in_turn_ && turn_ != nullptr) {
      in_turn_ = mine = true;
    } else if (worth != WakeRule::Worth::kWaits || items_.size() >= kHeldMax) {
      wake = !std::exchange(is_due_, true);
    } else {
      // The thread has to wake up once these have waited for long enough.
      wake = !in_turn_ && now + kHold < asleep_until_;
      if (wake) asleep_until_ = now + kHold;
    }
  }
  if (wake) came_.NotifyOne();
  if (mine) turn_();
  return true;
}

bool Inbox::Push(Item&& item) {
  const absl::Time now = clock_.Now();
  {
    MutexLock lock(&mu_);
    if (closed_) return false;
    has_lost_ = has_lost_ || LossIn(item) != nullptr;
    items_.push_back({std::move(item), now});
    is_due_ = true;
  }
  came_.NotifyOne();
  return true;
}

bool Inbox::Reserve(const MessageSize& size) {
  MutexLock lock(&mu_);
  const Arrival arrival{.size = size};
  if (!HasRoomLocked(&arrival)) return false;
  (size.is_small() ? cost_.small : cost_.large) += size.cost();
  return true;
}

bool Inbox::WaitForRoom(WaitingLine::Place place) {
  {
    MutexLock lock(&mu_);
    waiting_.Add(std::move(place));
  }
  // The coordinator may have emptied the inbox in between and be asleep.
  return Push(Nothing());
}

void Inbox::Wake() { Push(Nothing()); }

absl::Time Inbox::NextLocked() const {
  if (in_turn_) return absl::InfiniteFuture();  // its end says when
  return items_.empty() ? deadline_ : std::min(deadline_, items_.front().at + kHold);
}

bool Inbox::AwaitTurn() {
  MutexLock lock(&mu_);
  const auto due = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return !in_turn_ && (closed_ || is_due_ || NextLocked() <= clock_.Now());
  };
  while (!due()) {
    const absl::Time until = asleep_until_ = NextLocked();
    const auto changed = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return asleep_until_ != until || (!in_turn_ && (closed_ || is_due_));
    };
    clock_.Await(&mu_, &came_, changed, until);
  }
  asleep_until_ = absl::InfinitePast();
  if (closed_ && items_.empty()) return false;
  in_turn_ = true;
  return true;
}

void Inbox::TakeAll(std::vector<Received>& taken) {
  MutexLock lock(&mu_);
  if (has_lost_) {
    TakeUpToLost(taken);
  } else {
    taken.swap(items_);
  }
  cost_ = {};
  is_due_ = !items_.empty();
  rule_.Taken();
}

void Inbox::TakeUpToLost(std::vector<Received>& taken) {
  std::vector<Received> later;
  size_t room = kLostInTurn;
  for (Received& one : items_) {
    StreamsLost* const loss = LossIn(one.item);
    const size_t count = loss == nullptr ? 0 : std::min(room, loss->sessions.size());
    room -= count;
    if (loss == nullptr || count == loss->sessions.size()) {
      taken.push_back(std::move(one));
      continue;
    }
    const auto end = loss->sessions.begin() + static_cast<std::ptrdiff_t>(count);
    if (count > 0) {
      StreamsLost now{{loss->sessions.begin(), end}, loss->detail};
      taken.push_back({Inbound(std::move(now)), one.at});
      loss->sessions.erase(loss->sessions.begin(), end);
    }
    later.push_back(std::move(one));
  }
  items_ = std::move(later);
  has_lost_ = !items_.empty();
}

void Inbox::EndTurn(absl::Span<const MembersReports> jobs, absl::Time deadline) {
  bool wake = false;
  {
    MutexLock lock(&mu_);
    const bool worth = rule_.Decided(jobs);
    is_due_ = is_due_ || (!items_.empty() && (worth || items_.size() >= kHeldMax));
    in_turn_ = false;
    deadline_ = deadline;
    if (!items_.empty()) deadline = std::min(deadline, items_.front().at + kHold);
    wake = is_due_ || closed_ || deadline < asleep_until_;
    if (deadline < asleep_until_) asleep_until_ = deadline;
  }
  if (wake) came_.NotifyOne();
}

std::vector<std::function<void()>> Inbox::TakeWaiting() {
  MutexLock lock(&mu_);
  const auto left = [](size_t all, size_t taken) { return all - std::min(all, taken); };
  std::vector<std::function<void()>> taken =
      waiting_.Take({.messages = left(capacity_, items_.size()),
                     .small_cost = left(kSmallTurnCost, cost_.small),
                     .large_cost = left(kTurnCost, cost_.large)});
  is_due_ = is_due_ || !waiting_.empty();
  return taken;
}

void Inbox::Close() {
  {
    MutexLock lock(&mu_);
    closed_ = true;
  }
  came_.NotifyAll();
}

size_t Inbox::size() const {
  MutexLock lock(&mu_);
  return items_.size();
}

}  // namespace coordd
