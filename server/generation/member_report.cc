#include "server/generation/member_report.h"

#include <memory>

#include "absl/strings/str_cat.h"

namespace coordd {

absl::Status MemberReport::Add(const v1::ResumeReport& part, HeardMessages& heard) {
  if (part.received_size() != part.received_by_size()) {
    return absl::InvalidArgumentError(absl::StrCat("a ResumeReport with ", part.received_size(),
                                                   " messages that went to ",
                                                   part.received_by_size(), " process sets"));
  }
  for (const v1::LanePosition& lane : part.lanes())
    launched.push_back({lane.lane(), lane.launched()});
  for (int i = 0; i < part.received_size(); ++i)
    received.push_back(heard.Keep(part.received(i), ProcessSetId{part.received_by(i)}));
  v1::ResumeReport others;
  *others.mutable_forgotten() = part.forgotten();
  *others.mutable_process_sets() = part.process_sets();
  *others.mutable_schedules() = part.schedules();
  *others.mutable_frozen_schedules() = part.frozen_schedules();
  *others.mutable_departures() = part.departures();
  others.set_last_process_set(part.last_process_set());
  others.set_last_schedule(part.last_schedule());
  others.set_answered_requests(part.answered_requests());
  others.set_over(part.over());
  bytes += static_cast<int64_t>(others.SpaceUsedLong() + part.lanes().size() * sizeof(Launched) +
                                part.received().size() * sizeof(received[0]));
  rest.MergeFrom(others);
  return absl::OkStatus();
}

int64_t MemberReport::Free(int64_t most) {
  int64_t left = most;
  const auto free = [&left](auto& messages) {
    for (; left > 0 && !messages.empty(); --left)
      const std::unique_ptr<google::protobuf::Message> last(messages.ReleaseLast());
  };
  free(*rest.mutable_process_sets());
  free(*rest.mutable_forgotten());
  free(*rest.mutable_schedules());
  free(*rest.mutable_departures());
  return most - left;
}

}  // namespace coordd
