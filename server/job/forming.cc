#include "server/job/forming.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/duration_text.h"
#include "common/protocol/protocol_bounds.h"
#include "server/model/state_store.h"
#include "server/model/validate_message.h"

namespace coordd {
namespace {

// A full disk is emptied by people, a slow one in seconds.
constexpr absl::Duration kFirstRetry = absl::Milliseconds(100);
constexpr absl::Duration kLongestRetry = absl::Seconds(10);
constexpr int32_t kDoublings = 7;  // from the first to the longest

}  // namespace

void Forming::Stored() {
  failed_writes_ = 0;
  not_stored_.clear();
}

absl::Duration Forming::Failed(Generation number, const absl::Status& status) {
  const bool passing = IsPassing(status);
  const absl::Duration wait =
      std::min(kLongestRetry, kFirstRetry * (1 << std::min(failed_writes_++, kDoublings)));
  not_stored_ = Truncated(
      OneLine(absl::StrCat("generation ", ToInt(number),
                           " was not announced, since it could not be stored: ", status.message(),
                           passing ? absl::StrCat("; tried again in ", DurationText(wait))
                                   : "; this coordd forms no generation any more")),
      kMaxReasonBytes);
  return passing ? wait : absl::InfiniteDuration();
}

}  // namespace coordd
