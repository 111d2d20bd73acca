// Cuts what comes over a connection into frames. PURE.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/transport/tcp/tcp_frame.h"

namespace coordd {

// Who is told of frames.
class FrameSink {
 public:
  virtual ~FrameSink() = default;
  // A frame begins. Where its payload goes, which has room for all of it; nullptr: it has none, or
  // an empty one. An error ends the connection.
  virtual absl::StatusOr<std::byte*> BeginFrame(const FrameHeader& header) = 0;
  // The payload of the frame that has begun last is all there, be it empty.
  virtual void EndPayload() = 0;
};

// One thread uses it. Bytes reach it in their order, by either way: those of a payload may be
// written to where they belong by whoever reads the connection.
class FrameReader {
 public:
  // `sink` outlives it.
  explicit FrameReader(FrameSink& sink) : sink_(sink) {}

  // Where the next bytes of the connection belong; empty: they are to be handed to Take.
  absl::Span<std::byte> target() const {
    return {target_, target_ == nullptr ? 0 : static_cast<size_t>(payload_left_)};
  }
  // Whether all that has begun is there.
  bool is_between_frames() const { return header_bytes_ == 0 && payload_left_ == 0; }
  // As many have been written there. REQUIRES: there is room for them.
  void Filled(size_t bytes);
  // What to hand to Take at most so that the next payload can be written to where it belongs.
  size_t header_left() const { return FrameHeader::kBytes - header_bytes_; }
  // INVALID_ARGUMENT, or the sink's error: the connection is to be ended, and nothing more taken.
  absl::Status Take(absl::Span<const std::byte> bytes);

 private:
  absl::Status EndHeader();
  void CountPayload(size_t bytes);

  // Constant after construction.
  FrameSink& sink_;

  // Touched by the owner's thread.
  EncodedHeader header_ = {};
  size_t header_bytes_ = 0;
  uint64_t payload_left_ = 0;
  std::byte* target_ = nullptr;
};

}  // namespace coordd
