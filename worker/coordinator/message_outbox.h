// What a worker has still to say to coordd.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "absl/status/status.h"
#include "coordd/v1/session.pb.h"

namespace coordd {

// PURE, not thread-safe. While the network or coordd takes nothing, what names tensors is put
// together, so that a program that submits one tensor after the other does not fill it.
class MessageOutbox {
 public:
  // Messages that wait for the network. A turn of the control thread makes a few; coordd that reads
  // nothing for so long is as good as gone.
  static constexpr size_t kMostMessages = 16384;
  static constexpr int64_t kMostBytes = int64_t{64} << 20;
  // Up to here tensors are put together: half of what one message may have.
  static constexpr int64_t kTogetherBytes = 128 << 10;

  // RESOURCE_EXHAUSTED, and nothing has happened: there is no room.
  absl::Status Add(v1::WorkerMessage message);

  bool empty() const { return messages_.empty(); }
  size_t size() const { return messages_.size(); }
  // The oldest one, for the stream, which reads it where it is until PopFront.
  const v1::WorkerMessage& Begin();
  void PopFront();

 private:
  struct Waiting {
    v1::WorkerMessage message;
    int64_t bytes = 0;
  };

  // Whether it was put to the last one.
  bool Join(v1::WorkerMessage& message, int64_t bytes);

  std::deque<Waiting> messages_;
  int64_t bytes_ = 0;
  bool begun_ = false;  // the front is being written
};

}  // namespace coordd
