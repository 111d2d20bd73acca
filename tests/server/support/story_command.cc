#include "tests/server/support/story_command.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_replace.h"
#include "common/protocol/proto_convert.h"

namespace coordd {

absl::Duration DurationOf(const std::string& text) {
  absl::Duration duration;
  return absl::ParseDuration(text, &duration) ? duration : absl::ZeroDuration();
}

int64_t NumberOf(absl::string_view text) {
  int64_t number = 0;
  return absl::SimpleAtoi(text, &number) ? number : 0;
}

std::string StoryCommand::Get(const std::string& key, const std::string& otherwise) const {
  const auto it = named.find(key);
  return it == named.end() ? otherwise : it->second;
}

int64_t StoryCommand::Number(const std::string& key, int64_t otherwise) const {
  const auto it = named.find(key);
  return it == named.end() ? otherwise : NumberOf(it->second);
}

StoryCommand ParseStoryCommand(const std::string& text) {
  std::vector<std::string> words;
  std::string word;
  bool quoted = false;
  for (char c : text + " ") {
    if (c == '"') {
      quoted = !quoted;
    } else if (c == ' ' && !quoted) {
      if (!word.empty()) words.push_back(word);
      word.clear();
    } else {
      word += c;
    }
  }
  StoryCommand command;
  for (const std::string& w : words) {
    const size_t equals = w.find('=');
    if (command.verb.empty()) {
      command.verb = w;
    } else if (equals == std::string::npos) {
      command.words.push_back(w);
    } else {
      command.named[w.substr(0, equals)] = w.substr(equals + 1);
    }
  }
  if (command.words.empty()) command.words.push_back("");
  return command;
}

v1::Heartbeat HeartbeatOf(const StoryCommand& command) {
  v1::Heartbeat heartbeat;
  heartbeat.set_sent_ns(command.Number("sent", 1));
  heartbeat.set_stack(absl::StrReplaceAll(command.Get("stack", ""), {{"|", "\n"}}));
  if (const int64_t xid = command.Number("xid", 0); xid != 0) {
    heartbeat.mutable_gpu_health()->set_uuid("GPU-8f3c");
    heartbeat.mutable_gpu_health()->set_last_xid(static_cast<int32_t>(xid));
  }
  v1::LanePosition* lane = heartbeat.add_lanes();
  lane->set_lane(static_cast<int32_t>(command.Number("lane", 0)));
  lane->set_launched(command.Number("launched", 0));
  lane->set_completed(command.Number("completed", 0));
  lane->set_oldest_waiting(command.Get("waiting", ""));
  if (const std::string comm = command.Get("comm", ""); !comm.empty()) {
    v1::CommWait* wait = heartbeat.add_comm_waits();
    wait->set_comm(comm);
    wait->set_call(command.Get("call", ""));
    ToProto(DurationOf(command.Get("waits", "1s")), wait->mutable_waiting());
    if (const int64_t rank = command.Number("missing", -1); rank >= 0)
      wait->add_missing_ranks(static_cast<int32_t>(rank));
    if (const int64_t set = command.Number("of", -1); set >= 0)
      wait->set_process_set(static_cast<int32_t>(set));
  }
  if (const int64_t cycles = command.Number("cycles", 0); cycles != 0) {
    lane->add_marks()->set_cycles(cycles);
    const absl::Duration busy = DurationOf(command.Get("busy", "0s"));
    lane->mutable_marks(0)->set_busy_ns(absl::ToInt64Nanoseconds(busy));
  }
  return heartbeat;
}

}  // namespace coordd
