#include "server/job/held_calls.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/counted.h"

namespace coordd {

absl::Status HeldCalls::Hold(absl::string_view job, const StoreCall& call) {
  const int64_t more = static_cast<int64_t>(BytesOf(call.request));
  if (static_cast<int64_t>(calls_.size()) >= bounds_.calls || bytes_ + more > bounds_.bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(Counted(static_cast<int64_t>(calls_.size()), "call"), " of ",
                     Counted(bytes_, "byte"), calls_.size() == 1 ? " waits" : " wait",
                     " already until the members of job ", job, " are back, of at most ",
                     Counted(bounds_.calls, "call"), " and ", Counted(bounds_.bytes, "byte")));
  }
  bytes_ += more;
  calls_.emplace(call.call, call);
  return absl::OkStatus();
}

void HeldCalls::Cancel(CallId call) {
  const auto held = calls_.find(call);
  if (held == calls_.end()) return;
  bytes_ -= static_cast<int64_t>(BytesOf(held->second.request));
  calls_.erase(held);
}

StoreCall HeldCalls::TakeFirst() {
  StoreCall call = std::move(calls_.begin()->second);
  bytes_ -= static_cast<int64_t>(BytesOf(call.request));
  calls_.erase(calls_.begin());
  return call;
}

}  // namespace coordd
