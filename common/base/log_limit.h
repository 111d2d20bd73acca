// How often a line of one kind is written that strangers can cause.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace coordd {

// PURE. Not thread-safe. Some lines at once, then few a second: whoever reads the log sees that
// it goes on, and a disk is not filled.
class LogLimit {
 public:
  static constexpr int kBurst = 20;
  static constexpr absl::Duration kInterval = absl::Seconds(1);

  // Behind the burst, a line more each `interval`.
  explicit LogLimit(absl::Duration interval = kInterval, int burst = kBurst)
      : interval_(interval), burst_(burst) {}

  // Whether to write a line now. What it holds is to be put behind the line: empty, or how many
  // were left out since the last one.
  std::optional<std::string> Pass(absl::Time now) {
    const absl::Time earliest = now - burst_ * interval_;
    if (used_up_to_ < earliest) used_up_to_ = earliest;
    if (used_up_to_ + interval_ > now) {
      ++left_out_;
      return std::nullopt;
    }
    used_up_to_ += interval_;
    std::string more;
    if (left_out_ > 0) more = absl::StrCat(" (", left_out_, " more of this kind were not written)");
    left_out_ = 0;
    return more;
  }

  // Whether one that is made at `now` would do the same.
  bool IsUnused(absl::Time now) const {
    return left_out_ == 0 && used_up_to_ <= now - burst_ * interval_;
  }

  int64_t left_out() const { return left_out_; }

 private:
  absl::Duration interval_;
  int burst_;
  absl::Time used_up_to_ = absl::InfinitePast();  // the lines of the time before it are spent
  int64_t left_out_ = 0;
};

}  // namespace coordd
