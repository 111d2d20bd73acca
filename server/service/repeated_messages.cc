#include "server/service/repeated_messages.h"

#include <utility>

#include "absl/algorithm/container.h"

namespace coordd {

const ParsedMessage* RepeatedMessages::Find(absl::string_view bytes) const {
  for (const Known& known : known_)
    if (known.changes == changes_ && known.bytes == bytes) return &known.says;
  return nullptr;
}

void RepeatedMessages::Remember(absl::string_view bytes, const ParsedMessage& says) {
  const auto is_report = [](const MessagePart& part) {
    return part.report.words > 0 && part.report.is_nothing_else;
  };
  if (!says.may_repeat || !absl::c_all_of(says.parts, is_report)) return;
  Known& one = known_.size() < kMost ? known_.emplace_back() : known_[oldest_++ % kMost];
  one.bytes.assign(bytes.data(), bytes.size());
  one.changes = changes_;
  one.says = says;
}

bool RepeatedMessages::MembersAre(int64_t changes) {
  return changes == std::exchange(changes_, changes);
}

}  // namespace coordd
