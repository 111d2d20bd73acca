#include "worker/transport/ucx/message_inbox.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace coordd {
namespace {

// As much as messages under way need: the slices of some collectives.
constexpr size_t kSpareBuffers = 16;
constexpr int64_t kSpareBytesMax = int64_t{1} << 20;

}  // namespace

WaitingReceive* MessageInbox::Arrived(const MessageLabel& label) {
  OfSender& sender = senders_[label.sender()];
  if (label.number != sender.looked_at) return nullptr;
  ++sender.looked_at;
  return Waiting(label.tag);
}

void MessageInbox::Keep(KeptMessage message) {
  const MessageLabel label = message.label;
  OfSender& sender = senders_[label.sender()];
  if (label.number >= sender.looked_at) {
    sender.early.emplace(label.number, std::move(message));
  } else {
    tags_[label.tag].kept.push_back(std::move(message));
  }
}

std::optional<MessageInbox::Match> MessageInbox::NextMatch(Rank rank) {
  OfSender& sender = senders_[rank];
  while (!sender.early.empty() && sender.early.begin()->first == sender.looked_at) {
    KeptMessage message = std::move(sender.early.begin()->second);
    sender.early.erase(sender.early.begin());
    ++sender.looked_at;
    if (WaitingReceive* const receive = Waiting(message.label.tag); receive != nullptr)
      return Match{receive, std::move(message)};
    Keep(std::move(message));
  }
  return std::nullopt;
}

WaitingReceive* MessageInbox::Waiting(uint64_t tag) {
  const auto found = tags_.find(tag);
  if (found == tags_.end() || found->second.first == nullptr) return nullptr;
  WaitingReceive* const receive = found->second.first;
  Withdraw(*receive);
  return receive;
}

std::optional<KeptMessage> MessageInbox::Take(uint64_t tag) {
  const auto found = tags_.find(tag);
  if (found == tags_.end() || found->second.kept.empty()) return std::nullopt;
  std::list<KeptMessage>& kept = found->second.kept;
  KeptMessage message = std::move(kept.front());
  kept.pop_front();
  if (kept.empty()) tags_.erase(found);  // who waits has had what was kept
  return message;
}

void MessageInbox::Wait(WaitingReceive& receive) {
  OfTag& of_tag = tags_[receive.expected_tag];
  receive.next_of_tag = nullptr;
  (of_tag.first == nullptr ? of_tag.first : of_tag.last->next_of_tag) = &receive;
  of_tag.last = &receive;
}

void MessageInbox::Withdraw(WaitingReceive& receive) {
  const auto found = tags_.find(receive.expected_tag);
  COORDD_CHECK(found != tags_.end());
  OfTag& of_tag = found->second;
  WaitingReceive* before = nullptr;
  for (WaitingReceive* at = of_tag.first; at != &receive; at = at->next_of_tag) {
    COORDD_CHECK(at != nullptr);
    before = at;
  }
  (before == nullptr ? of_tag.first : before->next_of_tag) = receive.next_of_tag;
  if (of_tag.last == &receive) of_tag.last = before;
  if (of_tag.first == nullptr) tags_.erase(found);
}

AlignedBuffer MessageInbox::NewBuffer(int64_t size_bytes) {
  const auto fits = std::find_if(spare_.begin(), spare_.end(), [&](const AlignedBuffer& buffer) {
    return buffer.size_bytes() >= size_bytes;
  });
  if (fits == spare_.end()) return AlignedBuffer(size_bytes);
  AlignedBuffer buffer = std::move(*fits);
  spare_.erase(fits);
  return buffer;
}

void MessageInbox::GiveBack(AlignedBuffer buffer) {
  if (buffer.data() == nullptr || buffer.size_bytes() > kSpareBytesMax) return;
  spare_.push_front(std::move(buffer));  // its lines are still in the caches
  if (spare_.size() > kSpareBuffers) spare_.pop_back();
}

std::list<KeptMessage> MessageInbox::TakeAll() {
  std::list<KeptMessage> all;
  for (auto& [rank, sender] : senders_) {
    for (auto& [number, message] : sender.early) all.push_back(std::move(message));
    sender.early.clear();
  }
  for (auto& [tag, of_tag] : tags_) all.splice(all.end(), of_tag.kept);
  absl::erase_if(tags_, [](const auto& entry) { return entry.second.first == nullptr; });
  return all;
}

}  // namespace coordd
