#include "worker/coordinator/message_outbox.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/protocol/protocol_bounds.h"

namespace coordd {
namespace {

bool NamesTensorsOnly(const v1::WorkerMessage& message) {
  return message.has_tensors_ready() && message.tensors_ready().cached().empty();
}

}  // namespace

static_assert(MessageOutbox::kTogetherBytes <= kMaxTensorsReadyBytes);

absl::Status MessageOutbox::Add(v1::WorkerMessage message) {
  const auto bytes = static_cast<int64_t>(message.ByteSizeLong());
  if (Join(message, bytes)) return absl::OkStatus();
  if (messages_.size() >= kMostMessages) {
    return absl::ResourceExhaustedError(
        absl::StrCat("coordd has not read the last ", kMostMessages, " messages"));
  }
  if (bytes_ + bytes > kMostBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("coordd has not read the last ", bytes_ >> 20, " MiB of messages"));
  }
  bytes_ += bytes;
  messages_.push_back({std::move(message), bytes});
  return absl::OkStatus();
}

bool MessageOutbox::Join(v1::WorkerMessage& message, int64_t bytes) {
  if (messages_.empty() || (begun_ && messages_.size() == 1)) return false;
  Waiting& last = messages_.back();
  if (last.bytes + bytes > kTogetherBytes || !NamesTensorsOnly(message) ||
      !NamesTensorsOnly(last.message) || last.message.epoch() != message.epoch() ||
      last.message.generation() != message.generation() || bytes_ + bytes > kMostBytes) {
    return false;
  }
  last.message.mutable_tensors_ready()->mutable_tensors()->MergeFrom(
      message.tensors_ready().tensors());
  last.bytes += bytes;
  bytes_ += bytes;
  return true;
}

const v1::WorkerMessage& MessageOutbox::Begin() {
  begun_ = true;
  return messages_.front().message;
}

void MessageOutbox::PopFront() {
  bytes_ -= messages_.front().bytes;
  messages_.pop_front();
  begun_ = false;
}

}  // namespace coordd
