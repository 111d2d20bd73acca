#include "relay/relay_state.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/protocol/member_runs.h"
#include "coordd/v1/session.pb.h"

namespace coordd {

RelayState::RelayState(const RelayOptions& options, v1::NodeHello hello)
    : options_(options), hello_(std::move(hello)) {}

void RelayState::Said(StreamId stream, std::string message, absl::Time now) {
  const auto [it, is_new] = member_of_.try_emplace(stream, last_member_ + 1);
  if (is_new) {
    Member& member = members_[++last_member_];
    member.stream = stream;
    ReadJoin(member, message);
  }
  Add(it->second, std::move(message), /*is_end=*/false, /*alone=*/is_new, now);
}

// What cannot be read, or is no Join, is coordd's to refuse.
void RelayState::ReadJoin(Member& member, std::string& message) {
  if (!hello_.job().empty() && options_.metrics_address.empty()) return;
  v1::WorkerMessage first;
  if (!first.ParseFromString(message) || !first.has_join()) return;
  if (hello_.job().empty()) hello_.set_job(first.join().job());
  if (options_.metrics_address.empty() || first.join().metrics_address().empty()) return;
  member.metrics_address =
      std::exchange(*first.mutable_join()->mutable_metrics_address(), options_.metrics_address);
  message = first.SerializeAsString();
}

std::vector<std::string> RelayState::MetricsAddresses() const {
  std::vector<std::string> addresses;
  for (const auto& [number, member] : members_)
    if (!member.metrics_address.empty()) addresses.push_back(member.metrics_address);
  return addresses;
}

void RelayState::Ended(StreamId stream, absl::string_view detail, absl::Time now) {
  const auto it = member_of_.find(stream);
  if (it == member_of_.end()) return;  // coordd has ended it, or it has said nothing
  const int32_t member = it->second;
  Add(member, std::string(detail), /*is_end=*/true, /*alone=*/false, now);
  member_of_.erase(it);
  if (members_.at(member).last_word >= first_entry_) --with_words_;
  members_.erase(member);
}

// To the entry of those who have said the same, if this member has said nothing since.
void RelayState::Add(int32_t member, std::string message, bool is_end, bool alone, absl::Time now) {
  Member& sender = members_.at(member);
  if (sender.last_word < first_entry_) ++with_words_;
  if (pending_.empty()) pending_since_ = now;
  const auto same = by_message_.find(message);
  if (!alone && same != by_message_.end() && same->second > sender.last_word) {
    Entry& entry = pending_[static_cast<size_t>(same->second - first_entry_)];
    if (entry.is_end == is_end) {
      entry.members.push_back(member);
      sender.last_word = same->second;
      return;
    }
  }
  sender.last_word = next_entry();
  Entry& entry = pending_.emplace_back();
  entry.members.push_back(member);
  entry.message = std::move(message);
  entry.is_end = is_end;
  pending_bytes_ += entry.message.size();
  if (alone) return;
  by_message_.erase(entry.message);  // its key is a view of an older entry
  by_message_.emplace(entry.message, sender.last_word);
}

absl::Time RelayState::BatchDue() const {
  if (pending_.empty()) return absl::InfiniteFuture();
  if (with_words_ >= members_.size() || pending_bytes_ >= options_.batch_bytes)
    return pending_since_;
  return pending_since_ + options_.hold;
}

v1::NodeMessages RelayState::TakeBatch() {
  v1::NodeMessages batch;
  if (!std::exchange(hello_sent_, true)) *batch.mutable_hello() = hello_;
  size_t bytes = 0;
  int64_t words = 0;
  while (!pending_.empty()) {
    Entry& entry = pending_.front();
    bytes += entry.message.size();
    words += static_cast<int64_t>(entry.members.size());
    if (batch.messages_size() > 0 && (bytes > options_.batch_bytes || words > options_.batch_words))
      break;
    const auto known = by_message_.find(entry.message);
    if (known != by_message_.end() && known->second == first_entry_) by_message_.erase(known);
    std::sort(entry.members.begin(), entry.members.end());
    v1::NodeMessage& message = *batch.add_messages();
    for (int32_t member : entry.members) {
      AddMember(member, message.mutable_members());
      const auto it = members_.find(member);
      if (it != members_.end() && it->second.last_word == first_entry_) --with_words_;
    }
    pending_bytes_ -= entry.message.size();
    if (entry.is_end) {
      message.mutable_end()->set_detail(std::move(entry.message));
    } else {
      message.set_message(std::move(entry.message));
    }
    pending_.pop_front();
    ++first_entry_;
  }
  if (pending_.empty()) pending_since_ = absl::InfiniteFuture();
  return batch;
}

absl::Status RelayState::Heard(const v1::NodeReplies& replies, absl::Time now,
                               std::vector<ToWorker>& out) {
  absl::Status status;
  for (const v1::NodeReply& reply : replies.replies()) {
    ForEachMember(reply.members(), [&](int32_t number) {
      const auto it = members_.find(number);
      if (it == members_.end()) {
        // One that has just ended is spoken to until coordd hears of it.
        if (number < 1 || number > last_member_)
          status = absl::InternalError(
              absl::StrCat("coordd speaks to member ", number, " of ", last_member_));
        return;
      }
      Member& member = it->second;
      if (!reply.has_close()) {
        out.push_back(
            {.stream = member.stream, .message = &reply.message(), .sequence = ++member.sequence});
        return;
      }
      const v1::NodeMemberClose& close = reply.close();
      const StreamId stream = member.stream;
      out.push_back(
          {.stream = stream,
           .status = absl::Status(static_cast<absl::StatusCode>(close.code()), close.message())});
      Ended(stream, "", now);
    });
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace coordd
