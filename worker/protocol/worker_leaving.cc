#include "worker/protocol/worker_leaving.h"

#include <algorithm>
#include <utility>

#include "common/base/utf8.h"
#include "common/protocol/proto_convert.h"
#include "common/protocol/protocol_bounds.h"

namespace coordd {

v1::Leave WorkerLeaving::GoodbyeMessage(bool lives) const {
  v1::Leave leave;
  leave.set_reason(lives ? "shut down by its program" : "after the generation had ended");
  leave.set_failure(ShortenedText(goodbye_.failure(), kMaxReasonBytes));
  leave.set_drained(drain_asked_.has_value() || drain_until_ != absl::InfiniteFuture());
  return leave;
}

void WorkerLeaving::AskDrain(DrainAsked asked, const WorkerTurn& turn) {
  asked.until = std::min(drain_until_, asked.until);
  SetDrain(asked.until, turn);
  drain_asked_ = std::move(asked);
}

void WorkerLeaving::OnDrainNotice(const v1::DrainNotice& notice, const WorkerTurn& turn) {
  if (notice.lifted()) drain_asked_.reset();
  SetDrain(notice.lifted() ? absl::InfiniteFuture() : turn.now + FromProto(notice.grace()), turn);
}

void WorkerLeaving::ForgetNotice(const WorkerTurn& turn) {
  if (drain_until_ != absl::InfiniteFuture() && !drain_asked_.has_value())
    SetDrain(absl::InfiniteFuture(), turn);
}

std::optional<v1::WorkerMessage> WorkerLeaving::DrainRequest(absl::Time now) const {
  if (!drain_asked_.has_value() || leaves()) return std::nullopt;
  v1::WorkerMessage message;
  ToProto(std::max(drain_asked_->until - now, absl::Milliseconds(1)),
          message.mutable_drain_request()->mutable_grace());
  message.mutable_drain_request()->set_reason(
      ShortenedText(drain_asked_->reason, kMaxAskedByBytes));
  return message;
}

void WorkerLeaving::SetDrain(absl::Time until, const WorkerTurn& turn) {
  drain_until_ = until;
  turn.out.push_back(DrainNoticed{until});
}

}  // namespace coordd
