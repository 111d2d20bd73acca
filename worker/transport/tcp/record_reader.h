// Opens the records that come over a connection. (OpenSSL)
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/transport/tcp/record_cipher.h"

namespace coordd {

// Records of payload are read to where the payload belongs and decrypted there, piece by piece as
// they come, and nobody is told before their tag has proved to be true; others are opened in a
// buffer. `target` is where the payload that is coming goes, all that is left of it (empty: none
// is); between two calls it stays the same, unless Open has opened something. One thread uses it.
class RecordReader {
 public:
  struct Opened {
    size_t placed = 0;                   // bytes at the beginning of the target,
    absl::Span<const std::byte> frames;  // or these, which stay until the next call of Room
    bool is_any() const { return placed > 0 || !frames.empty(); }
  };

  explicit RecordReader(const RecordSecret& secret);

  // What the next record has brought; nothing: it is not all there. INVALID_ARGUMENT: what has come
  // is not what was sent; the connection is to be ended.
  absl::StatusOr<Opened> Open(absl::Span<std::byte> target);
  // Whether the next call of Open says something more than that there is nothing.
  bool can_open() const;
  // Whether a record has begun that is not all there.
  bool is_in_record() const { return is_placing_ || held() > 0; }
  // Where the next bytes of the connection go; how many parts were set. `sparing`: what comes may
  // be payload, which is not to be copied. REQUIRES: Open has opened nothing.
  size_t Room(absl::Span<std::byte> target, bool sparing, std::array<iovec, 2>& parts);
  // As many have been written there.
  void Filled(size_t bytes);

 private:
  static constexpr size_t kHeldBytesMax = RecordHeader::kFramesBytesMax + (size_t{4} << 10);

  size_t held() const { return end_ - begin_; }
  const std::byte* next() const { return held_.get() + begin_; }
  absl::Status FalseTag() const;
  absl::StatusOr<Opened> OpenFrames(const RecordHeader& header);
  void BeginPlacing(const RecordHeader& header, absl::Span<std::byte> target);
  void Place(size_t bytes);

  // Touched by the owner's thread.
  RecordCipher cipher_;
  std::unique_ptr<std::byte[]> held_;  // what has come and was not opened; none until it is needed
  size_t begin_ = 0, end_ = 0;         // of that
  bool is_placing_ = false;            // a record of payload has begun
  std::byte* place_ = nullptr;         // where its next byte goes,
  size_t placed_ = 0, to_place_ = 0;   // and how many have come, and are to come
};

}  // namespace coordd
