#include "server/door/flood_watch.h"

#include <algorithm>
#include <numeric>

namespace coordd {
namespace {

constexpr uint64_t kLooksPerBound = 8;

}  // namespace

bool FloodWatch::IsLookDue(uint64_t resident) {
  resident_ = std::min(resident_, resident);
  if (resident - resident_ < bytes_max_ / kLooksPerBound) return false;
  resident_ = resident;
  return true;
}

std::vector<Backlog> FloodWatch::WhoEnds(std::vector<Backlog> all) const {
  std::sort(all.begin(), all.end(),
            [](const Backlog& a, const Backlog& b) { return a.bytes > b.bytes; });
  uint64_t total =
      std::accumulate(all.begin(), all.end(), uint64_t{0},
                      [](uint64_t sum, const Backlog& one) { return sum + one.bytes; });
  size_t ending = 0;
  while (total > bytes_max_) total -= all[ending++].bytes;
  all.resize(ending);
  return all;
}

}  // namespace coordd
