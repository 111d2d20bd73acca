// What a client may send below gRPC's messages. gRPC 1.51 bounds neither a header block of HTTP/2
// nor how many frames of a kind come, so each connection's frames are counted before gRPC has them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/door/http2_frame.h"
#include "server/door/shared_budget.h"

namespace coordd {

// What costs gRPC more than the bytes that it takes. An honest client has little of each.
enum class FrameKind {
  kCallWithoutMessage,  // a call that is reset, or that ends with its headers
  kSettings,
  kPing,
  kPriority,
  kEmptyData,  // too short to be a message, and not the end of a call
  kWindowUpdate,
  kUnknown,  // that gRPC passes over
};
inline constexpr size_t kFrameKinds = 7;

// Of one kind a connection may send `burst` at once, and then as many as it is given: some each
// second, and some for what coordd has sent to it, since that has to be answered: for its bytes,
// and for frames that lead to others (FrameGuard::Said).
struct FrameBudget {
  double burst = 0;
  double per_second = 0;
  double per_answered_byte = 0;
};

struct FrameBounds {
  // At a time: as many as coordd announces. gRPC 1.51 bounds only a client that has acknowledged
  // that.
  size_t calls = 1024;
  // Of these so many are each connection's own; those beyond are counted with those of all
  // connections of the client.
  size_t free_calls = 16;
  // Of one header block, and the frames that it may be cut into: gRPC refuses a call whose headers
  // have more than 8 KiB, and honest clients fill each frame before they begin another.
  size_t header_bytes = 64 << 10;
  size_t header_frames = 16;
  size_t frame_bytes = 16384;  // what a server takes that has announced nothing else (RFC 9113)
  // By FrameKind. docs/design/security.md says why each is what it is.
  std::array<FrameBudget, kFrameKinds> budgets = {{
      {.burst = 1000, .per_second = 200},
      {.burst = 100, .per_second = 10},
      {.burst = 200, .per_second = 10, .per_answered_byte = 1.0 / 256},
      {.burst = 100, .per_second = 10},
      {.burst = 1000, .per_second = 100},
      {.burst = 4096, .per_second = 100, .per_answered_byte = 1.0 / 32},
      {.burst = 100, .per_second = 10},
  }};
};

// PURE. Not thread-safe. One connection. Keeps the head of one frame and some numbers, whatever
// comes.
class FrameGuard {
 public:
  // `calls`: what all connections of this client have together; may be null.
  FrameGuard(const FrameBounds& bounds, absl::Time now,
             std::shared_ptr<SharedBudget> calls = nullptr);

  // What the client has sent, in pieces as they come, its preface first. RESOURCE_EXHAUSTED,
  // INVALID_ARGUMENT: what it does that no client should, for "it has sent ..."; the connection is
  // to be closed, and none of `bytes` is gRPC's.
  absl::Status Take(absl::string_view bytes, absl::Time now);
  // That so many bytes were sent to the client.
  void Answered(size_t bytes) { answered_ += bytes; }
  // That such a frame was: calls end with it, and the client may answer it.
  void Said(const FrameHead& frame);
  // The connection ends now, and calls that are under way with it.
  void End(absl::Time now);
  // Calls that have begun and have not ended.
  size_t open_calls() const { return open_.size(); }
  // Pings of gRPC's that the client has not answered.
  uint64_t unanswered_pings() const { return pings_.unanswered; }
  // While it has not answered them it had a call: gRPC ends calls before it closes.
  bool had_a_call_then() const { return pings_.met_a_call; }
  // A ping that met no call was answered, and gRPC has said nothing since: it may have given up
  // before it heard that.
  bool answered_too_late() const { return pings_.answered_idle; }
  // The client has said that it will begin no more calls, and may be waiting for the end.
  bool said_goodbye() const { return said_goodbye_; }

 private:
  absl::Status TakeFrame(const FrameHead& frame, absl::Time now);
  absl::Status BeginCall(uint32_t stream, absl::Time now);
  void EndCall(uint32_t stream);
  absl::Status TakeHeaders(const FrameHead& frame, absl::Time now);
  absl::Status TakeContinuation(const FrameHead& frame);
  absl::Status TakeData(const FrameHead& frame, absl::Time now);
  absl::Status HeadersWithinBounds() const;
  absl::Status Spend(FrameKind kind, double tokens, absl::Time now);
  void Grant(FrameKind kind, double tokens) {
    purses_[static_cast<size_t>(kind)].granted += tokens;
  }

  struct Purse {
    double tokens = 0;
    double granted = 0;  // for frames of coordd's, since the last spending
    // When it was last given some, and what had been answered by then.
    absl::Time given_at;
    uint64_t answered = 0;
  };

  FrameBounds bounds_;
  std::shared_ptr<SharedBudget> calls_;
  std::array<Purse, kFrameKinds> purses_;  // by FrameKind
  uint64_t answered_ = 0;                  // bytes

  std::array<char, kPrefaceBytes> head_ =
      {};  // of what is being received: the preface, then a frame
  size_t head_size_ = 0;
  size_t skipping_ = 0;  // bytes of the frame's payload that are still to come
  bool greeted_ = false, has_settings_ = false, said_goodbye_ = false;
  uint32_t block_stream_ = 0;  // whose header block is not whole; 0: none
  size_t block_bytes_ = 0, block_frames_ = 0;
  uint64_t unended_ = 0;  // calls whose client has not said its end yet
  uint32_t last_call_ = 0;
  struct Pings {
    uint64_t unanswered = 0;
    bool met_a_call = false;     // one of these, or a call has begun since
    bool were_idle = false;      // there was no call when the first of these was said
    bool answered_idle = false;  // such have been answered, and nothing was said since
  };
  Pings pings_;  // gRPC's
  absl::flat_hash_set<uint32_t> open_;
  OpenCalls beside_;  // those of `open_` that are not free
};

}  // namespace coordd
