#include "worker/transport/tcp/outbox.h"

#include <algorithm>

#include "common/base/check.h"

namespace coordd {
namespace {

constexpr size_t kFirstFrames = 16;

iovec PartOf(const std::byte* begin, size_t size) {
  return {const_cast<std::byte*>(begin), size};  // which writing does not change
}

}  // namespace

void Outbox::Ring::Push(Frame frame) {
  if (count_ == frames_.size()) {
    std::vector<Frame> larger(std::max(kFirstFrames, 2 * frames_.size()));
    for (size_t i = 0; i < count_; ++i) larger[i] = at(i);
    frames_.swap(larger);
    begin_ = 0;
  }
  ++count_;
  at(count_ - 1) = frame;
}

void Outbox::Ring::Pop() {
  begin_ = (begin_ + 1) & (frames_.size() - 1);
  --count_;
}

size_t Outbox::Gather(absl::Span<iovec> parts) const {
  size_t used = 0;
  auto add = [&](const Frame& frame, size_t skipped) {
    const size_t header = frame.header.size();
    if (skipped < header) parts[used++] = PartOf(frame.header.data() + skipped, header - skipped);
    if (frame.operation == nullptr || frame.operation->size_bytes == 0) return;
    const size_t from = skipped < header ? 0 : skipped - header;
    parts[used++] = PartOf(frame.operation->bytes + from, frame.operation->size_bytes - from);
  };
  if (written_ > 0) add(begun_->at(0), written_);
  for (const Ring* ring : {&urgent_, &orderly_}) {
    for (size_t i = written_ > 0 && ring == begun_ ? 1 : 0; i < ring->count(); ++i) {
      if (used + 2 > parts.size()) return used;
      add(ring->at(i), 0);
    }
  }
  return used;
}

void Outbox::Wrote(size_t bytes, absl::FunctionRef<void(TcpOperation&)> ended) {
  while (bytes > 0) {
    if (written_ == 0) begun_ = urgent_.empty() ? &orderly_ : &urgent_;
    COORDD_CHECK(!begun_->empty());
    const Frame& frame = begun_->at(0);
    const size_t left = frame.size_bytes() - written_;
    if (bytes < left) {
      written_ += bytes;
      return;
    }
    bytes -= left;
    written_ = 0;
    TcpOperation* const operation = frame.operation;
    begun_->Pop();
    if (operation != nullptr) ended(*operation);
  }
}

void Outbox::Drop(absl::FunctionRef<void(TcpOperation&)> dropped) {
  for (Ring* ring : {&urgent_, &orderly_}) {
    for (; !ring->empty(); ring->Pop()) {
      if (ring->at(0).operation != nullptr) dropped(*ring->at(0).operation);
    }
  }
  written_ = 0;
}

}  // namespace coordd
