#include "server/service/waiting_line.h"

#include <algorithm>
#include <utility>

namespace coordd {
namespace {

// The first behind `last`, and then from the beginning, of which something may be taken; the end:
// there is none.
template <typename Map, typename MayTake>
typename Map::iterator NextAfter(Map& all, uint64_t last, MayTake may_take) {
  auto next = all.upper_bound(last);
  for (size_t looked_at = 0; looked_at < all.size(); ++looked_at, ++next) {
    if (next == all.end()) next = all.begin();
    if (may_take(next->second)) return next;
  }
  return all.end();
}

}  // namespace

void WaitingLine::Add(Place place) {
  if (place.size.is_small()) {
    small_.push_back(std::move(place));
    return;
  }
  Account& account = large_[place.account];
  Large& large = account.jobs[place.job];
  if (place.has_begun) ++begun_, ++account.begun;
  (place.has_begun ? large.begun : large.other).push_back(std::move(place));
}

bool WaitingLine::MayTake(const Account& account, const Large& large) const {
  return !large.begun.empty() || MayBegin(account);
}

bool WaitingLine::MayTake(const Account& account) const {
  return account.begun > 0 || MayBegin(account);
}

std::function<void()> WaitingLine::TakeFront(std::deque<Place>& line, size_t& cost) {
  cost -= std::min(cost, line.front().size.cost());
  std::function<void()> resume = std::move(line.front().resume);
  line.pop_front();
  return resume;
}

std::vector<std::function<void()>> WaitingLine::Take(Room room) {
  std::vector<std::function<void()>> taken;
  for (; room.messages > 0 && room.small_cost > 0 && !small_.empty(); --room.messages)
    taken.push_back(TakeFront(small_, room.small_cost));
  while (room.large_cost > 0) {
    const auto next =
        NextAfter(large_, last_, [this](const Account& account) { return MayTake(account); });
    if (next == large_.end()) break;
    taken.push_back(TakeLarge(next, room.large_cost));
  }
  return taken;
}

std::function<void()> WaitingLine::TakeLarge(Accounts::iterator account, size_t& cost) {
  last_ = account->first;
  Account& of = account->second;
  const auto job =
      NextAfter(of.jobs, of.last, [&](const Large& large) { return MayTake(of, large); });
  of.last = job->first;
  Large& large = job->second;
  std::function<void()> resume;
  if (!large.begun.empty()) {
    --begun_, --of.begun;
    resume = TakeFront(large.begun, cost);
  } else {
    resume = TakeFront(large.other, cost);
  }
  if (large.begun.empty() && large.other.empty()) of.jobs.erase(job);
  if (of.jobs.empty()) large_.erase(account);
  return resume;
}

}  // namespace coordd
