#include "server/service/session_outbox.h"

#include <grpcpp/support/slice.h>

#include <utility>
#include <vector>

namespace coordd {

bool SessionOutbox::HoldsReaderUp() {
  holds_up_ = IsLong();
  return holds_up_;
}

bool SessionOutbox::LetsReaderGo() { return !IsLong() && std::exchange(holds_up_, false); }

bool SessionOutbox::Add(grpc::ByteBuffer message) {
  if (messages_.size() >= bounds_.messages || bytes_ + message.Length() > bounds_.bytes)
    return false;
  bytes_ += message.Length();
  messages_.push_back(std::move(message));
  return true;
}

grpc::ByteBuffer SessionOutbox::Take() {
  grpc::ByteBuffer next = std::move(messages_.front());
  messages_.pop_front();
  if (bounds_.together_bytes > 0 && !messages_.empty()) {
    std::vector<grpc::Slice> slices, more;
    size_t bytes = next.Length();
    next.Dump(&slices);
    for (; !messages_.empty() && bytes + messages_.front().Length() <= bounds_.together_bytes;) {
      bytes += messages_.front().Length();
      messages_.front().Dump(&more);
      slices.insert(slices.end(), more.begin(), more.end());
      messages_.pop_front();
    }
    next = grpc::ByteBuffer(slices.data(), slices.size());
  }
  bytes_ -= next.Length();
  return next;
}

void SessionOutbox::Discard() {
  messages_.clear();
  bytes_ = 0;
}

int64_t SessionOutbox::TakeGrowth() {
  const auto now = static_cast<int64_t>(messages_.size());
  return now - std::exchange(told_, now);
}

}  // namespace coordd
