// What is still to be written to a stream, and what else is kept until it is.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "server/service/unread_answers.h"

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
// it was given. What it holds, and has handed out and was not told to be written, is counted with
// what others of the same caller have not read.
class SessionOutbox {
 public:
  // What a message takes besides its bytes.
  static constexpr size_t kMessageCosts = 512;

  // `unread`: of whose session it is; null: nothing is counted.
  SessionOutbox(const OutboxBounds& bounds, std::shared_ptr<UnreadAnswers::OfOne> unread)
      : bounds_(bounds), unread_(std::move(unread)) {}
  ~SessionOutbox();
  SessionOutbox(const SessionOutbox&) = delete;

  bool empty() const { return messages_.empty(); }
  // Whether who says more has to read first what he was answered: a third of what there is room
  // for is there, or more than his part of what there is for his caller, or for all. He is then
  // remembered.
  bool HoldsReaderUp();
  // True, once, for who was held up, when there is less again.
  bool LetsReaderGo();
  // While the reader is held up: what he has said, and nobody has heard yet, takes so much memory.
  // False: it is too much, and he is to be closed.
  bool KeepsToo(size_t bytes);
  // False, and nothing has happened: there is no room. `counted`: bytes of the message that count
  // elsewhere (NewSlice).
  bool Add(grpc::ByteBuffer message, size_t counted);
  // Why there is none: "has left 12288 messages or 64 MiB unread".
  std::string WhyFull() const;
  // What goes out next: one message, or as many as go together. REQUIRES: not empty.
  grpc::ByteBuffer Take();
  // What was taken before is written, or never will be.
  void Written();
  void Discard();
  // By how much the number of messages has changed since it was asked for last: for the metric,
  // which need not hear of what is written at once.
  int64_t TakeGrowth();

 private:
  struct Message {
    grpc::ByteBuffer bytes;
    size_t cost = 0;  // that counts here
  };

  bool IsLong() const {
    return messages_.size() >= bounds_.messages / 3 || bytes_ >= bounds_.bytes / 3 ||
           (unread_ != nullptr && unread_->HoldsUp(Unread()));
  }
  int64_t Unread() const { return static_cast<int64_t>(bytes_ + taken_bytes_); }
  void Count(size_t& what, size_t bytes);

  const OutboxBounds bounds_;
  const std::shared_ptr<UnreadAnswers::OfOne> unread_;
  std::deque<Message> messages_;
  size_t bytes_ = 0;        // of messages_
  size_t taken_bytes_ = 0;  // of what Take has handed out
  // Of these, and besides, what counts with what others have not read.
  size_t queued_cost_ = 0, taken_cost_ = 0, kept_ = 0;
  bool holds_up_ = false;
  int64_t told_ = 0;  // messages of which TakeGrowth's caller knows
};

}  // namespace coordd
