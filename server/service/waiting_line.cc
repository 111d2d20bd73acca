#include "server/service/waiting_line.h"

#include <utility>

namespace coordd {

void WaitingLine::Add(Place place) {
  if (IsSmall(place.bytes)) {
    small_.push_back(std::move(place.resume));
  } else {
    large_[place.job].push_back(std::move(place));
  }
}

std::vector<std::function<void()>> WaitingLine::Take(size_t small, size_t large_bytes) {
  std::vector<std::function<void()>> taken;
  for (; small > 0 && !small_.empty(); --small) {
    taken.push_back(std::move(small_.front()));
    small_.pop_front();
  }
  while (large_bytes > 0 && !large_.empty()) {
    auto next = large_.upper_bound(last_job_);
    if (next == large_.end()) next = large_.begin();
    std::deque<Place>& line = next->second;
    last_job_ = next->first;
    large_bytes -= line.front().bytes < large_bytes ? line.front().bytes : large_bytes;
    taken.push_back(std::move(line.front().resume));
    line.pop_front();
    if (line.empty()) large_.erase(next);
  }
  return taken;
}

}  // namespace coordd
