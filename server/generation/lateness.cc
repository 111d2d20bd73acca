#include "server/generation/lateness.h"

#include <algorithm>
#include <utility>

namespace coordd {
namespace {

// Below, what is measured is how processes are scheduled.
constexpr absl::Duration kLateMin = absl::Milliseconds(2);

}  // namespace

std::optional<CycleLateness::Window> CycleLateness::Told(size_t member, int64_t cycles,
                                                         absl::Duration busy) {
  if (collectives_ == 0 || cycles <= cycles_) return std::nullopt;
  Mark& mark = open_[cycles];
  if (mark.busy.empty()) mark.busy.assign(members_, absl::InfiniteDuration());
  if (mark.busy[member] != absl::InfiniteDuration()) return std::nullopt;
  mark.busy[member] = busy;
  if (++mark.told < members_) {
    if (open_.size() > kOpenMarksMax) open_.erase(open_.begin());
    return std::nullopt;
  }
  Window window;
  window.collectives = (cycles - std::exchange(cycles_, cycles)) * collectives_;
  std::vector<absl::Duration> took(members_);
  for (size_t i = 0; i < members_; ++i) took[i] = mark.busy[i] - before_[i];
  const absl::Duration longest = *std::max_element(took.begin(), took.end());
  for (absl::Duration one : took) window.lag.push_back((longest - one) / window.collectives);
  before_ = std::move(mark.busy);
  open_.erase(open_.begin(), open_.upper_bound(cycles));
  return window;
}

int32_t SlowestRank(absl::Span<const absl::Duration> lag) {
  if (lag.size() < 2) return -1;
  const auto last = std::max_element(lag.begin(), lag.end());
  if (*last <= kLateMin) return -1;
  std::vector<absl::Duration> sorted(lag.begin(), lag.end());
  const auto middle = sorted.begin() + static_cast<int64_t>((sorted.size() - 1) / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *last > 2 * *middle ? static_cast<int32_t>(last - lag.begin()) : -1;
}

}  // namespace coordd
