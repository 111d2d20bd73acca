// A program reports the same in each of its steps, in a few messages: what these say is kept, so
// that it need not be parsed again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/service/message_parts.h"

namespace coordd {

// What a message on a stream says, in parts (message_parts.h).
struct ParsedMessage {
  std::vector<MessagePart> parts;
  size_t space = 0;        // of memory, at most; 0: hardly any
  bool may_repeat = true;  // it means the same whenever it is said, while the members are the same
};

// Not thread-safe. Knows a few of the last messages that may repeat, by their bytes; each only as
// long as the members of its stream are those for which it was parsed.
class RepeatedMessages {
 public:
  static constexpr size_t kMost = 4;
  static constexpr size_t kMostBytes = 1024;  // of one: a larger one is not worth the comparison

  // nullptr: it is not known. Stays where it is until the next Remember.
  const ParsedMessage* Find(absl::string_view bytes) const;
  // REQUIRES: it is not known.
  void Remember(absl::string_view bytes, const ParsedMessage& says);
  // The members of the stream are these (NodeMembers::changes, which only grows); whether they were
  // before.
  bool MembersAre(int64_t changes);

 private:
  struct Known {
    std::string bytes;
    int64_t changes = 0;
    ParsedMessage says;
  };
  std::vector<Known> known_;
  size_t oldest_ = 0;
  int64_t changes_ = 0;
};

}  // namespace coordd
