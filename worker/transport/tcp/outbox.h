// Frames that are to be sent over a connection, in the order in which they are. PURE.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "worker/transport/tcp/tcp_frame.h"
#include "worker/transport/tcp/tcp_operation.h"

namespace coordd {

// Frames without a payload that others wait for go in front of those with one, but not into the
// middle of it. One thread uses it.
class Outbox {
 public:
  bool empty() const { return urgent_.empty() && orderly_.empty(); }
  void PushUrgent(const FrameHeader& header) { urgent_.Push({Encode(header), nullptr}); }
  void Push(const FrameHeader& header) { orderly_.Push({Encode(header), nullptr}); }
  // With the operation's bytes as its payload, which is over when they are written.
  void Push(const FrameHeader& header, TcpOperation& operation) {
    orderly_.Push({Encode(header), &operation});
  }

  // The next bytes; how many of `parts` were set, 0: there are none.
  size_t Gather(absl::Span<iovec> parts) const;
  // As many of these, all or the first ones, were written. Calls `ended` for operations that are
  // over; it must not push.
  void Wrote(size_t bytes, absl::FunctionRef<void(TcpOperation&)> ended);
  // Forgets everything, and calls `dropped` for all operations.
  void Drop(absl::FunctionRef<void(TcpOperation&)> dropped);

 private:
  struct Frame {
    EncodedHeader header;
    TcpOperation* operation;
    size_t size_bytes() const {
      return header.size() + (operation == nullptr ? 0 : operation->size_bytes);
    }
  };
  // Grows as much as it has to, and stays so.
  class Ring {
   public:
    bool empty() const { return count_ == 0; }
    size_t count() const { return count_; }
    Frame& at(size_t index) { return frames_[(begin_ + index) & (frames_.size() - 1)]; }
    const Frame& at(size_t index) const { return frames_[(begin_ + index) & (frames_.size() - 1)]; }
    void Push(Frame frame);
    void Pop();

   private:
    std::vector<Frame> frames_;  // a power of two, or none
    size_t begin_ = 0, count_ = 0;
  };

  Ring urgent_, orderly_;
  size_t written_ = 0;      // of the frame that is begun
  Ring* begun_ = &urgent_;  // which is the first one there
};

}  // namespace coordd
