#include "worker/protocol/received_log.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace coordd {

void ReceivedLog::Add(ProcessSetId to, v1::CoordinatorMessage message) {
  const int64_t position = message.position();
  COORDD_CHECK(position > position_);
  position_ = position;
  // Of the session in which it came; it will be told in another.
  message.clear_epoch();
  message.clear_sequence();
  const int64_t bytes = static_cast<int64_t>(message.ByteSizeLong());
  entries_.emplace(position, Entry{to, std::move(message), bytes});
  bytes_ += bytes;
  while (entries_.size() > kMaxMessages || (bytes_ > kMaxBytes && entries_.size() > 1)) {
    const auto oldest = entries_.begin();
    forgotten_[oldest->second.to] = oldest->first;
    Erase(oldest);
  }
}

void ReceivedLog::Settle(ProcessSetId set, int64_t position) {
  const bool everybody = ToInt(set) == 0;
  for (auto entry = entries_.begin(); entry != entries_.end() && entry->first <= position;) {
    const bool is_settled = (everybody || entry->second.to == set) && !entry->second.kept;
    entry = is_settled ? Erase(entry) : std::next(entry);
  }
  std::erase_if(forgotten_, [&](const auto& forgotten) {
    return forgotten.second <= position && (everybody || forgotten.first == set);
  });
  if (!ended_.empty()) DropEnded();
}

void ReceivedLog::Keep(int64_t position) {
  const auto entry = entries_.find(position);
  if (entry != entries_.end()) entry->second.kept = true;
}

void ReceivedLog::DropKept(ProcessSetId ended) {
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const v1::ProcessSetChange& change = entry->second.message.process_set_change();
    const bool drops = entry->second.kept && change.process_set() == ToInt(ended);
    entry = drops ? Erase(entry) : std::next(entry);
  }
}

void ReceivedLog::NoteEnded(v1::ProcessSetChange set) {
  const ProcessSetId id{set.process_set()};
  ended_.emplace(id, std::move(set));
  DropEnded();
}

void ReceivedLog::DropEnded() {
  std::erase_if(ended_, [this](const auto& ended) {
    const auto is_to_it = [&](const auto& entry) { return entry.second.to == ended.first; };
    return !forgotten_.contains(ended.first) &&
           std::none_of(entries_.begin(), entries_.end(), is_to_it);
  });
}

void ReceivedLog::Clear() {
  entries_.clear();
  forgotten_.clear();
  ended_.clear();
  bytes_ = 0;
}

ReceivedLog::Entries::iterator ReceivedLog::Erase(Entries::iterator entry) {
  bytes_ -= entry->second.bytes;
  return entries_.erase(entry);
}

}  // namespace coordd
