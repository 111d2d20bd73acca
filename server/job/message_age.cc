#include "server/job/message_age.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace coordd {
namespace {

// A worker that has not seen its Membership yet sends what does not depend on one.
bool IsTimeless(const v1::WorkerMessage& message) {
  return message.has_leave() || message.has_heartbeat() || message.has_join() ||
         message.body_case() == v1::WorkerMessage::BODY_NOT_SET;
}

// Behind the end of a generation only a failure can still make things worse.
bool IsExpected(const v1::WorkerMessage& message, const MessageAge& age) {
  if (age.damage == Damage::kNone) return !message.has_recovery_report();
  return message.has_collective_failed() || message.has_trace_chunk() ||
         message.has_drain_request() || (message.has_recovery_report() && age.follows);
}

}  // namespace

absl::StatusOr<bool> IsTimely(const v1::WorkerMessage& message, const MessageAge& age) {
  const int64_t epoch = message.epoch();
  const int64_t known = std::max(ToInt(age.generation), ToInt(age.previous));
  if (epoch > ToInt(age.epoch) || message.generation() > known) {
    return absl::InvalidArgumentError(
        absl::StrCat("a message of epoch ", epoch, " and generation ", message.generation(),
                     ", which do not exist yet: the epoch is ", ToInt(age.epoch),
                     " and the sender's generation ", known));
  }
  const bool timeless = IsTimeless(message);
  const bool from_before_membership = epoch == 0 || epoch == ToInt(age.epoch);
  if (timeless && message.generation() == 0 && from_before_membership) return true;
  // A survivor says goodbye, or that it lives, while it waits; and a goodbye may have crossed the
  // next Membership.
  const bool waits = age.generation == Generation{0};
  if (age.previous != Generation{0} && epoch == ToInt(age.epoch)) {
    if (message.has_leave() || message.has_drain_request()) return true;
    if (waits) return message.has_heartbeat();
  }
  if (epoch != ToInt(age.epoch) || message.generation() < ToInt(age.generation)) return false;
  if (timeless) return true;
  if (waits) return absl::InvalidArgumentError("a message about collectives before any Membership");
  return IsExpected(message, age);
}

}  // namespace coordd
