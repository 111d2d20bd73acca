// What workers say of schedules.
#include <cstdint>
#include <string>

#include "tests/server/support/story.h"

namespace coordd {

void Story::Schedule(const Command& command) {
  v1::WorkerMessage message = From(command);
  const int64_t id = command.Number("id", 1);
  if (command.verb == "ack") {
    message.mutable_schedule_ack()->set_id(id);
  } else if (command.verb == "finished") {
    message.mutable_schedule_finished()->set_id(id);
  } else if (command.verb == "break") {
    message.mutable_schedule_break()->set_id(id);
    message.mutable_schedule_break()->set_reason(command.Get("reason", ""));
  } else {
    message.mutable_freeze_reply()->set_id(id);
    message.mutable_freeze_reply()->set_launched(command.Number("launched", 0));
    message.mutable_freeze_reply()->set_join_follows(command.Number("join_follows", 0) == 1);
  }
  Step(SessionMessage{SessionOf(command).id, message});
}

}  // namespace coordd
