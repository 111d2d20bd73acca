#include "worker/protocol/heard_messages.h"

#include <algorithm>
#include <utility>

namespace coordd {

void HeardMessages::NoteChange(const v1::ProcessSetChange& change) {
  last_process_set_ = std::max(last_process_set_, change.process_set());
  if (change.code() == 0 && change.request() != 0) sets_position_ = position_;
}

void HeardMessages::Keep(v1::CoordinatorMessage message) {
  if (message.position() <= log_.position()) return;  // it has none, or coordd counts wrongly
  ProcessSetId to;
  switch (message.body_case()) {
    case v1::CoordinatorMessage::kPlan:
      if (message.plan().batches().empty()) return;
      to = ProcessSetId{message.plan().batches(0).process_set()};
      break;
    case v1::CoordinatorMessage::kSchedule:
      to = ProcessSetId{message.schedule().process_set()};
      break;
    case v1::CoordinatorMessage::kFreeze:
    case v1::CoordinatorMessage::kCut:
      to = set_;
      break;
    case v1::CoordinatorMessage::kProcessSetChange:
      // A pair is announced to the two alone.
      if (message.process_set_change().request() == 0)
        to = ProcessSetId{message.process_set_change().process_set()};
      break;
    default:
      return;
  }
  log_.Add(to, std::move(message));
}

}  // namespace coordd
