#include "worker/protocol/cycle_marks.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace coordd {

CycleMarks::CycleMarks(std::vector<bool> counts)
    : counts_(std::move(counts)),
      any_counts_(std::find(counts_.begin(), counts_.end(), true) != counts_.end()) {
  COORDD_CHECK(!counts_.empty());
}

void CycleMarks::Ended(int64_t position, absl::Duration took) {
  const size_t batches = counts_.size();
  const size_t batch = static_cast<size_t>(position - 1) % batches;
  const int64_t cycle = (position - 1) / static_cast<int64_t>(batches);
  COORDD_CHECK(cycle >= total_.cycles);
  const size_t index = static_cast<size_t>(cycle - total_.cycles);
  while (open_.size() <= index) open_.push_back({batches, absl::ZeroDuration()});
  if (counts_[batch]) open_[index].busy += took;
  --open_[index].missing;
  while (!open_.empty() && open_.front().missing == 0) {
    total_.busy += open_.front().busy;
    ++total_.cycles;
    open_.pop_front();
    if (any_counts_ && total_.cycles % stride_ == 0) marks_.push_back(total_);
  }
  while (marks_.size() > kMarksMax) {
    stride_ *= 2;
    std::erase_if(marks_, [this](const Mark& mark) { return mark.cycles % stride_ != 0; });
  }
}

std::vector<CycleMarks::Mark> CycleMarks::Take() {
  // Half as many as there could have been: the next ones may be closer together.
  if (marks_.size() < kMarksMax / 2) stride_ = std::max<int64_t>(1, stride_ / 2);
  if (marks_.empty()) stride_ = std::max<int64_t>(1, stride_ / 8);
  return std::exchange(marks_, {});
}

}  // namespace coordd
