// One direction of an encrypted connection: the records that it is cut into, and the keys and
// numbers by which each of them is sealed. (OpenSSL)
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "worker/transport/tcp/tcp_tls.h"

namespace coordd {

// What a record carries.
enum class RecordKind : uint8_t {
  kFrames = 1,   // bytes of the connection, up to kFramesBytesMax of them
  kPayload = 2,  // a part of the payload of the frame that has begun last, and nothing else
};

// On the wire: the size in four bytes, little endian; the kind; three zeros. Then as many bytes
// that are encrypted, and the tag of them and of the header.
struct RecordHeader {
  static constexpr size_t kBytes = 8;
  static constexpr uint32_t kFramesBytesMax = uint32_t{16} << 10;
  static constexpr uint32_t kPayloadBytesMax = uint32_t{64} << 10;

  RecordKind kind = RecordKind::kFrames;
  uint32_t size_bytes = 0;

  uint32_t size_max() const {
    return kind == RecordKind::kFrames ? kFramesBytesMax : kPayloadBytesMax;
  }
};
using EncodedRecordHeader = std::array<std::byte, RecordHeader::kBytes>;
EncodedRecordHeader Encode(const RecordHeader& header);
// Whether it is one, with a size that there may be; else `header` is not touched.
bool ParseRecordHeader(const std::byte* bytes, RecordHeader& header);

inline constexpr size_t kRecordTagBytes = 16;
inline constexpr size_t kRecordOverheadBytes = RecordHeader::kBytes + kRecordTagBytes;

// Of one direction of one connection, from its handshake.
using RecordSecret = std::array<unsigned char, 32>;
// The secret that follows this one, from which nobody finds this one.
RecordSecret NextSecret(const RecordSecret& secret);

// AES-128-GCM. The nonce of a record is its number, counted from the connection's beginning, xor
// bytes that come from the secret; so none comes twice, and a record that is not where it was in
// the order has a false tag. Both ends take the next secret after kRecordsPerKey records, which
// are no more than 2^29 blocks: docs/design/tcp.md says against what. One thread uses it.
class RecordCipher {
 public:
  enum class Direction { kSeals, kOpens };
  static constexpr uint64_t kRecordsPerKey = uint64_t{1} << 17;

  RecordCipher(Direction direction, const RecordSecret& secret);
  ~RecordCipher();
  RecordCipher(const RecordCipher&) = delete;
  RecordCipher& operator=(const RecordCipher&) = delete;

  // The next record.
  void Begin(const EncodedRecordHeader& header);
  // Its next bytes, in any pieces; `to` may be `from`. What is opened is not to be believed before
  // Open has said so.
  void Update(const std::byte* from, std::byte* to, size_t size);
  // Its end, of who seals: writes kRecordTagBytes.
  void Seal(std::byte* tag);
  // Its end, of who opens: whether it is what was sealed.
  bool Open(const std::byte* tag);
  // That have been begun.
  uint64_t records() const { return records_; }

 private:
  static constexpr size_t kNonceBytes = 12;

  void UseSecret();

  // Constant after construction.
  const bool seals_;

  // Touched by the owner's thread.
  OpenSslOwned<EVP_CIPHER_CTX> context_;
  RecordSecret secret_;
  std::array<unsigned char, kNonceBytes> nonce_base_ = {};
  uint64_t records_ = 0;
};

}  // namespace coordd
