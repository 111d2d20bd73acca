// Seals what is to be sent into records. (OpenSSL)
#pragma once

#include <sys/uio.h>

#include <cstddef>

#include "absl/types/span.h"
#include "worker/transport/tcp/record_cipher.h"

namespace coordd {

// One thread uses it.
class RecordWriter {
 public:
  // Parts of this size and above, which only payloads are, have records of their own, and are read
  // to where they belong; smaller ones go together with the headers beside them.
  static constexpr size_t kPayloadBytesMin = size_t{4} << 10;
  // Room for this much is room for anything.
  static constexpr size_t kRoomBytesMin = RecordHeader::kFramesBytesMax + kRecordOverheadBytes;

  struct Sealed {
    size_t taken = 0;  // bytes of the parts, all or the first ones
    size_t bytes = 0;  // that they have become
  };

  explicit RecordWriter(const RecordSecret& secret)
      : cipher_(RecordCipher::Direction::kSeals, secret) {}

  // As many records as there is room for; what is sealed must be sent. None of the parts is empty.
  Sealed Seal(absl::Span<const iovec> parts, absl::Span<std::byte> to);

 private:
  size_t SealRecord(RecordKind kind, absl::Span<const iovec> parts, size_t size, std::byte* to);

  RecordCipher cipher_;
};

}  // namespace coordd
