#include "server/generation/heard_messages.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace coordd {

std::string HeardMessages::KeyOf(const v1::CoordinatorMessage& message, ProcessSetId to) {
  return absl::StrCat(ToInt(to), ":", message.SerializeAsString());
}

uint32_t HeardMessages::Keep(const v1::CoordinatorMessage& message, ProcessSetId to) {
  std::string key = KeyOf(message, to);
  const int64_t key_bytes = static_cast<int64_t>(key.size());
  const auto [known, is_new] = by_key_.try_emplace(std::move(key), 0);
  if (!is_new) {
    ++entries_[known->second].said_by;
    return known->second;
  }
  if (free_.empty()) {
    free_.push_back(static_cast<uint32_t>(entries_.size()));
    entries_.emplace_back();
  }
  known->second = free_.back();
  free_.pop_back();
  Entry& entry = entries_[known->second];
  entry.message = std::make_shared<const v1::CoordinatorMessage>(message);
  entry.to = to;
  entry.said_by = 1;
  entry.bytes = key_bytes + static_cast<int64_t>(entry.message->SpaceUsedLong());
  bytes_ += entry.bytes;
  return known->second;
}

void HeardMessages::Release(absl::Span<const uint32_t> ids) {
  for (uint32_t id : ids) {
    Entry& entry = entries_[id];
    if (--entry.said_by > 0) continue;
    by_key_.erase(KeyOf(*entry.message, entry.to));
    bytes_ -= entry.bytes;
    entry = Entry();
    free_.push_back(id);
  }
}

int64_t HeardMessages::Free(int64_t most) {
  int64_t freed = 0;
  for (; freed < most && !entries_.empty(); ++freed) {
    const Entry& last = entries_.back();
    if (last.said_by > 0) by_key_.erase(KeyOf(*last.message, last.to));
    entries_.pop_back();
  }
  return freed;
}

}  // namespace coordd
