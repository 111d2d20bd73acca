#include "server/service/waiting_line.h"

#include <algorithm>
#include <utility>

namespace coordd {

void WaitingLine::Add(Place place) {
  if (place.size.is_small()) {
    small_.push_back(std::move(place));
  } else {
    large_[place.job].push_back(std::move(place));
  }
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
  while (room.large_cost > 0 && !large_.empty()) {
    auto next = large_.upper_bound(last_job_);
    if (next == large_.end()) next = large_.begin();
    last_job_ = next->first;
    taken.push_back(TakeFront(next->second, room.large_cost));
    if (next->second.empty()) large_.erase(next);
  }
  return taken;
}

}  // namespace coordd
