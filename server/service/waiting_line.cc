#include "server/service/waiting_line.h"

#include <algorithm>
#include <utility>

namespace coordd {

void WaitingLine::Add(Place place) {
  if (place.size.is_small()) {
    small_.push_back(std::move(place));
    return;
  }
  Large& large = large_[place.job];
  if (place.has_begun) CountBegun(place.account, 1);
  (place.has_begun ? large.begun : large.other).push_back(std::move(place));
}

void WaitingLine::CountBegun(uint64_t account, int by) {
  begun_ += by;
  const auto it = begun_of_.try_emplace(account, 0).first;
  if ((it->second += by) == 0) begun_of_.erase(it);
}

bool WaitingLine::MayBegin(uint64_t account) const {
  const auto own = begun_of_.find(account);
  return begun_ < kBegunMax && (own == begun_of_.end() || own->second < kBegunOfOne);
}

std::deque<WaitingLine::Place>* WaitingLine::NextOf(Large& large) const {
  if (!large.begun.empty()) return &large.begun;
  return MayBegin(large.other.front().account) ? &large.other : nullptr;
}

WaitingLine::Jobs::iterator WaitingLine::NextJob() {
  auto next = large_.upper_bound(last_job_);
  for (size_t looked_at = 0; looked_at < large_.size(); ++looked_at, ++next) {
    if (next == large_.end()) next = large_.begin();
    if (NextOf(next->second) != nullptr) return next;
  }
  return large_.end();
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
    const auto next = NextJob();
    if (next == large_.end()) break;
    last_job_ = next->first;
    std::deque<Place>& line = *NextOf(next->second);
    if (line.front().has_begun) CountBegun(line.front().account, -1);
    taken.push_back(TakeFront(line, room.large_cost));
    if (next->second.begun.empty() && next->second.other.empty()) large_.erase(next);
  }
  return taken;
}

}  // namespace coordd
