// What gRPC says to a client, as far as the door has to know it: which frames, and why it closes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "server/door/http2_frame.h"

namespace coordd {

// PURE. Not thread-safe. One connection. Of what gRPC sends it reads the heads of frames, and
// keeps one frame's beginning.
class ClosingWord {
 public:
  // What gRPC has sent, in pieces as they come. `on_frame` is called with the head of each frame.
  void Take(absl::string_view bytes, absl::FunctionRef<void(const FrameHead&)> on_frame);

  // That gRPC has announced the end.
  bool said() const { return said_; }
  // What it finds wrong with the client, in printable words, e.g. "ENHANCE_YOUR_CALM
  // (too_many_pings)". Empty: nothing; as when it stops itself.
  const std::string& complaint() const { return complaint_; }

 private:
  // Of a GOAWAY: the last stream and the error; then a word of why.
  static constexpr size_t kGoawayBytes = 8, kWordBytes = 64;

  void TakeHead(absl::FunctionRef<void(const FrameHead&)> on_frame);
  void TakeGoaway();

  std::array<char, kFrameHeadBytes + kGoawayBytes + kWordBytes> kept_ = {};
  size_t kept_size_ = 0, wanted_ = kFrameHeadBytes;
  size_t skipping_ = 0;  // bytes of the frame's payload that are still to come
  bool in_goaway_ = false;
  bool said_ = false;
  std::string complaint_;
};

}  // namespace coordd
