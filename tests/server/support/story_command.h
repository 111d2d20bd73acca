// A line of a story (story.h), and the messages that some lines are.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordd/v1/session.pb.h"

namespace coordd {

struct StoryCommand {
  std::string verb;
  std::vector<std::string> words;            // behind the verb
  std::map<std::string, std::string> named;  // key=value
  std::string Get(const std::string& key, const std::string& otherwise) const;
  int64_t Number(const std::string& key, int64_t otherwise) const;
};

// Words are separated by spaces; a value with spaces stands in double quotes: reason="a b".
StoryCommand ParseStoryCommand(const std::string& text);

// 0 for what is none.
absl::Duration DurationOf(const std::string& text);
int64_t NumberOf(absl::string_view text);

// What `beat` says.
v1::Heartbeat HeartbeatOf(const StoryCommand& command);

}  // namespace coordd
