// What is still to be written to a stream.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <cstdint>
#include <deque>

namespace coordd {

struct OutboxBounds {
  // What a worker may leave unread. A plan is some kilobytes, so this is a worker that has stopped
  // reading: before so much is answered, no more is read from it (HoldsReaderUp), and what waits in
  // the inbox fits into the rest.
  size_t messages = 3 * 4096;
  size_t bytes = 64 << 20;
  // Of what goes out as one message, unless one is larger; 0: each goes by itself.
  size_t together_bytes = 0;
};

// Not thread-safe: one owner. Never holds more than its bounds, and hands out in the order in which
// it was given.
class SessionOutbox {
 public:
  explicit SessionOutbox(const OutboxBounds& bounds) : bounds_(bounds) {}

  const OutboxBounds& bounds() const { return bounds_; }
  bool empty() const { return messages_.empty(); }
  // Whether who says more has to read first what he was answered: a third of what there is room
  // for is there. He is then remembered.
  bool HoldsReaderUp();
  // True, once, for who was held up, when there is less again.
  bool LetsReaderGo();
  // False, and nothing has happened: there is no room.
  bool Add(grpc::ByteBuffer message);
  // What goes out next: one message, or as many as go together. REQUIRES: not empty.
  grpc::ByteBuffer Take();
  void Discard();
  // By how much the number of messages has changed since it was asked for last: for the metric,
  // which need not hear of what is written at once.
  int64_t TakeGrowth();

 private:
  bool IsLong() const {
    return messages_.size() >= bounds_.messages / 3 || bytes_ >= bounds_.bytes / 3;
  }

  const OutboxBounds bounds_;
  std::deque<grpc::ByteBuffer> messages_;
  size_t bytes_ = 0;
  bool holds_up_ = false;
  int64_t told_ = 0;  // messages of which TakeGrowth's caller knows
};

}  // namespace coordd
