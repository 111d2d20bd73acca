#include "server/service/session_outbox.h"

#include <grpcpp/support/slice.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace coordd {

SessionOutbox::~SessionOutbox() {
  Count(queued_cost_, 0);
  Count(taken_cost_, 0);
  Count(kept_, 0);
}

void SessionOutbox::Count(size_t& what, size_t bytes) {
  if (unread_ != nullptr && bytes != what)
    unread_->Add(static_cast<int64_t>(bytes) - static_cast<int64_t>(what));
  what = bytes;
}

bool SessionOutbox::HoldsReaderUp() {
  holds_up_ = IsLong();
  return holds_up_;
}

bool SessionOutbox::LetsReaderGo() {
  if (IsLong() || !std::exchange(holds_up_, false)) return false;
  Count(kept_, 0);
  return true;
}

bool SessionOutbox::KeepsToo(size_t bytes) {
  Count(kept_, bytes);
  return bytes == 0 || unread_ == nullptr || !unread_->Ends(Unread() + static_cast<int64_t>(bytes));
}

bool SessionOutbox::Add(grpc::ByteBuffer message, size_t counted) {
  const size_t length = message.Length();
  if (messages_.size() >= bounds_.messages || bytes_ + length > bounds_.bytes) return false;
  // Whoever has read what came before is told the next thing, however large it is.
  if (unread_ != nullptr && unread_->Ends(Unread())) return false;
  const size_t cost = length - counted + kMessageCosts;
  bytes_ += length;
  Count(queued_cost_, queued_cost_ + cost);
  messages_.push_back({.bytes = std::move(message), .cost = cost});
  return true;
}

std::string SessionOutbox::WhyFull() const {
  if (unread_ != nullptr && unread_->Ends(Unread() + static_cast<int64_t>(kept_))) {
    return absl::StrCat("has left ", Unread(), " bytes unread, while ", unread_->Text(),
                        " are not read");
  }
  return absl::StrCat("has left ", bounds_.messages, " messages or ", bounds_.bytes >> 20,
                      " MiB unread");
}

grpc::ByteBuffer SessionOutbox::Take() {
  size_t cost = messages_.front().cost;
  grpc::ByteBuffer next = std::move(messages_.front().bytes);
  messages_.pop_front();
  if (bounds_.together_bytes > 0 && !messages_.empty()) {
    std::vector<grpc::Slice> slices, more;
    size_t bytes = next.Length();
    next.Dump(&slices);
    for (; !messages_.empty() && bytes + messages_.front().bytes.Length() <= bounds_.together_bytes;
         messages_.pop_front()) {
      bytes += messages_.front().bytes.Length();
      cost += messages_.front().cost;
      messages_.front().bytes.Dump(&more);
      slices.insert(slices.end(), more.begin(), more.end());
    }
    next = grpc::ByteBuffer(slices.data(), slices.size());
  }
  taken_bytes_ = next.Length();
  bytes_ -= taken_bytes_;
  Count(taken_cost_, cost);
  Count(queued_cost_, queued_cost_ - cost);
  return next;
}

void SessionOutbox::Written() {
  taken_bytes_ = 0;
  Count(taken_cost_, 0);
}

void SessionOutbox::Discard() {
  messages_.clear();
  bytes_ = 0;
  Count(queued_cost_, 0);
}

int64_t SessionOutbox::TakeGrowth() {
  const auto now = static_cast<int64_t>(messages_.size());
  return now - std::exchange(told_, now);
}

}  // namespace coordd
