#include "server/job/end_rule.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/duration_text.h"

namespace coordd {
namespace {

// Nobody tells when the last worker has left, so it is looked at: soon when somebody waits for it.
constexpr absl::Duration kWhileDraining = absl::Milliseconds(20);
constexpr absl::Duration kOtherwise = absl::Seconds(1);

}  // namespace

std::string EndRule::Look(absl::Time now, size_t workers, bool owner_gone) {
  last_look_ = now;
  if (workers > 0) {
    idle_since_ = absl::InfiniteFuture();
  } else {
    idle_since_ = std::min(idle_since_, now);
  }
  if (owner_gone) {
    if (workers == 0) return "the process that had started it has ended, and no worker is left";
    drain_since_ = std::min(drain_since_, now);
    if (now - drain_since_ >= options_.drain) {
      return absl::StrCat("the process that had started it ended ",
                          DurationText(now - drain_since_), " ago");
    }
  }
  if (workers == 0 && now - idle_since_ >= options_.idle)
    return absl::StrCat("it has had no worker for ", DurationText(now - idle_since_));
  return "";
}

absl::Time EndRule::NextLook() const {
  if (drain_since_ != absl::InfiniteFuture()) return last_look_ + kWhileDraining;
  return options_.idle == absl::InfiniteDuration() ? absl::InfiniteFuture()
                                                   : last_look_ + kOtherwise;
}

}  // namespace coordd
