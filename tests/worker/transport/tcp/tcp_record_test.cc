// What goes over an encrypted connection, and what nobody can do to it without being noticed.
#include <gmock/gmock.h>
#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "worker/transport/tcp/record_reader.h"
#include "worker/transport/tcp/record_writer.h"
#include "worker/transport/tcp/tcp_stream.h"

namespace coordd {
namespace {

using testing::HasSubstr;
using Bytes = std::vector<std::byte>;

constexpr RecordSecret kSecret = {1, 2, 3}, kOtherSecret = {1, 2, 4};

Bytes Filled(size_t size, int seed) {
  Bytes bytes(size);
  for (size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<std::byte>(i * 7 + static_cast<size_t>(seed) + i / 251);
  return bytes;
}

iovec PartOf(const Bytes& bytes) { return {const_cast<std::byte*>(bytes.data()), bytes.size()}; }

Bytes Sealed(RecordWriter& writer, const Bytes& bytes) {
  Bytes room(bytes.size() * 2 + RecordWriter::kRoomBytesMin);
  const iovec part = PartOf(bytes);
  const RecordWriter::Sealed sealed = writer.Seal({&part, 1}, absl::MakeSpan(room));
  EXPECT_EQ(sealed.taken, bytes.size());
  room.resize(sealed.bytes);
  return room;
}

// Who reads, with a payload's place of as many bytes.
class Reading {
 public:
  explicit Reading(size_t place_bytes, const RecordSecret& secret = kSecret)
      : place(place_bytes), reader_(secret) {}

  // Takes these bytes, as many at a time as there is room for and `at_most`.
  absl::Status Hear(const Bytes& bytes, size_t at_most = SIZE_MAX) {
    for (size_t at = 0;;) {
      const absl::Span<std::byte> target = absl::MakeSpan(place).subspan(placed);
      const absl::StatusOr<RecordReader::Opened> opened = reader_.Open(target);
      if (!opened.ok()) return opened.status();
      placed += opened->placed;
      frames.insert(frames.end(), opened->frames.begin(), opened->frames.end());
      if (opened->is_any()) continue;
      if (at == bytes.size()) return absl::OkStatus();
      std::array<iovec, 2> parts;
      const size_t count = reader_.Room(target, /*sparing=*/at_most % 2 == 0, parts);
      size_t filled = 0;
      for (size_t i = 0; i < count; ++i) {
        const size_t size =
            std::min({parts[i].iov_len, bytes.size() - at, std::max(at_most, filled) - filled});
        std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(at), size,
                    static_cast<std::byte*>(parts[i].iov_base));
        at += size;
        filled += size;
        if (size < parts[i].iov_len) break;
      }
      EXPECT_GT(filled, 0u);
      if (filled == 0) return absl::InternalError("there is no room");
      reader_.Filled(filled);
    }
  }
  bool is_in_record() const { return reader_.is_in_record(); }

  Bytes place, frames;
  size_t placed = 0;

 private:
  RecordReader reader_;
};

TEST(TcpRecord, BringsWhatWasSentInWhateverPieces) {
  for (const size_t piece : {size_t{1}, size_t{7}, size_t{24}, size_t{5000}, SIZE_MAX}) {
    RecordWriter writer(kSecret);
    const Bytes header = Filled(16, 1), payload = Filled(150000, 2), small = Filled(900, 3);
    const std::array<iovec, 4> parts = {PartOf(header), PartOf(payload), PartOf(header),
                                        PartOf(small)};
    Bytes sealed(200000);
    const RecordWriter::Sealed done = writer.Seal(parts, absl::MakeSpan(sealed));
    EXPECT_EQ(done.taken, 150000u + 900 + 32);
    sealed.resize(done.bytes);
    // A header; three records of payload; a header and what is small together.
    EXPECT_EQ(sealed.size(), done.taken + 5 * kRecordOverheadBytes);
    Reading reading(payload.size());
    EXPECT_EQ(reading.Hear(sealed, piece), absl::OkStatus());
    EXPECT_EQ(reading.place, payload);
    EXPECT_EQ(reading.placed, payload.size());
    Bytes frames = header;
    frames.insert(frames.end(), header.begin(), header.end());
    frames.insert(frames.end(), small.begin(), small.end());
    EXPECT_EQ(reading.frames, frames);
    EXPECT_FALSE(reading.is_in_record());
    // Nothing of it can be read on the way.
    EXPECT_EQ(std::search(sealed.begin(), sealed.end(), small.begin(), small.begin() + 8),
              sealed.end());
  }
}

TEST(TcpRecord, TakesNoMoreThanThereIsRoomFor) {
  const Bytes header = Filled(16, 1), payload = Filled(100000, 2);
  for (const size_t room : {size_t{40}, size_t{5000}, size_t{20000}, size_t{70000}}) {
    RecordWriter writer(kSecret);
    Reading reading(payload.size());
    size_t at = 0;
    Bytes sealed(room);
    for (int i = 0; i < 100 && at < header.size() + payload.size(); ++i) {
      std::vector<iovec> parts;
      if (at < header.size()) parts.push_back(PartOf(header));
      const size_t from = at < header.size() ? 0 : at - header.size();
      parts.push_back({const_cast<std::byte*>(payload.data()) + from, payload.size() - from});
      const RecordWriter::Sealed done = writer.Seal(parts, absl::MakeSpan(sealed));
      if (done.taken == 0) break;
      ASSERT_LE(done.bytes, room);
      at += done.taken;
      EXPECT_EQ(reading.Hear(Bytes(sealed.begin(),
                                   sealed.begin() + static_cast<std::ptrdiff_t>(done.bytes))),
                absl::OkStatus());
    }
    EXPECT_EQ(at, room == 40 ? header.size() : header.size() + payload.size()) << room;
    EXPECT_EQ(reading.frames.size() + reading.placed, at);
  }
}

TEST(TcpRecord, HasAFalseTagWhereverABitWasFlipped) {
  RecordWriter writer(kSecret);
  const Bytes first = Sealed(writer, Filled(10, 1));
  for (const size_t size : {size_t{33}, RecordWriter::kPayloadBytesMin}) {
    const Bytes said = Filled(size, 2);
    RecordWriter other(kSecret);
    Bytes sealed = Sealed(other, said);
    for (size_t at = 0; at < sealed.size(); at += at < 64 || at + 64 > sealed.size() ? 1 : 97) {
      for (const int bit : {0, 4, 7}) {
        Bytes changed = sealed;
        changed[at] ^= static_cast<std::byte>(1 << bit);
        changed.resize(changed.size() + (size_t{64} << 10));  // if it is told to be longer
        Reading reading(RecordWriter::kPayloadBytesMin * 4);
        const absl::Status heard = reading.Hear(changed);
        EXPECT_TRUE(absl::IsInvalidArgument(heard)) << at << " " << heard;
        EXPECT_EQ(reading.placed, 0u);
        EXPECT_TRUE(reading.frames.empty());
      }
    }
    Reading reading(size);
    EXPECT_EQ(reading.Hear(sealed), absl::OkStatus());
  }
}

// What is heard of these records, and of how many.
std::pair<absl::Status, size_t> HearAll(const std::vector<Bytes>& records,
                                        const RecordSecret& secret = kSecret) {
  Reading reading(0, secret);
  for (const Bytes& record : records)
    if (absl::Status heard = reading.Hear(record); !heard.ok())
      return {heard, reading.frames.size()};
  return {absl::OkStatus(), reading.frames.size()};
}

TEST(TcpRecord, IsNotBelievedOutOfItsPlace) {
  RecordWriter writer(kSecret), other(kOtherSecret);
  const Bytes one = Sealed(writer, Filled(10, 1)), two = Sealed(writer, Filled(10, 2)),
              three = Sealed(writer, Filled(10, 3));
  EXPECT_EQ(HearAll({one, two, three}), std::pair(absl::OkStatus(), size_t{30}));
  const auto refused = [](const std::pair<absl::Status, size_t>& heard, size_t bytes) {
    EXPECT_TRUE(absl::IsInvalidArgument(heard.first)) << heard.first;
    EXPECT_THAT(std::string(heard.first.message()), HasSubstr("is not what was sent"));
    EXPECT_EQ(heard.second, bytes);
  };
  refused(HearAll({one, one}), 10);                     // replayed
  refused(HearAll({one, two, one}), 20);                // later, too
  refused(HearAll({one, three}), 10);                   // one was dropped
  refused(HearAll({two, one, three}), 0);               // out of order
  refused(HearAll({Sealed(other, Filled(10, 1))}), 0);  // with another key,
  refused(HearAll({one}, kOtherSecret), 0);             // as of the other direction
  // Cut off: nothing is said of what is not whole, and that it is not is known.
  for (size_t size = 1; size < one.size(); ++size) {
    Reading reading(0);
    EXPECT_EQ(reading.Hear(Bytes(one.begin(), one.begin() + static_cast<std::ptrdiff_t>(size))),
              absl::OkStatus());
    EXPECT_TRUE(reading.frames.empty());
    EXPECT_TRUE(reading.is_in_record());
  }
}

TEST(TcpRecord, BelievesNoSize) {
  const auto heard = [](const RecordHeader& said, size_t place) {
    Bytes bytes(RecordHeader::kBytes + 40);
    const EncodedRecordHeader header = Encode(said);
    std::copy(header.begin(), header.end(), bytes.begin());
    Reading reading(place);
    return std::string(reading.Hear(bytes).message());
  };
  for (const uint32_t size : {0u, RecordHeader::kFramesBytesMax + 1, UINT32_MAX})
    EXPECT_THAT(heard({RecordKind::kFrames, size}, 100000), HasSubstr("no record"));
  for (const uint32_t size : {0u, RecordHeader::kPayloadBytesMax + 1, UINT32_MAX})
    EXPECT_THAT(heard({RecordKind::kPayload, size}, 100000), HasSubstr("no record"));
  for (const uint8_t kind : {0, 3, 255})
    EXPECT_THAT(heard({RecordKind{kind}, 10}, 100), HasSubstr("no record"));
  EXPECT_THAT(heard({RecordKind::kPayload, 11}, 10),
              HasSubstr("11 bytes of payload has come, where 10 are expected"));
  EXPECT_THAT(heard({RecordKind::kPayload, 1}, 0), HasSubstr("where 0 are expected"));
  EXPECT_THAT(heard({RecordKind::kPayload, 10}, 10), HasSubstr("its tag is false"));
}

// What docs/design/tcp.md says, made by other calls.
Bytes Derived(const RecordSecret& secret, const std::string& label, size_t size) {
  EVP_KDF* const kdf = EVP_KDF_fetch(nullptr, "HKDF", nullptr);
  EVP_KDF_CTX* const context = EVP_KDF_CTX_new(kdf);
  std::string mode = "EXPAND_ONLY", digest = "SHA256", info = label;
  RecordSecret key = secret;
  const std::array<OSSL_PARAM, 5> params = {
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_MODE, mode.data(), 0),
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest.data(), 0),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, key.data(), key.size()),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, info.data(), info.size()),
      OSSL_PARAM_construct_end()};
  Bytes made(size);
  EXPECT_EQ(
      EVP_KDF_derive(context, reinterpret_cast<unsigned char*>(made.data()), size, params.data()),
      1);
  EVP_KDF_CTX_free(context);
  EVP_KDF_free(kdf);
  return made;
}

Bytes SealedByHand(const RecordSecret& secret, uint64_t number, const Bytes& text) {
  const Bytes key = Derived(secret, "coordd tcp record key", 16);
  Bytes nonce = Derived(secret, "coordd tcp record nonce", 12);
  for (size_t i = 0; i < 8; ++i) nonce[11 - i] ^= static_cast<std::byte>(number >> (8 * i));
  const EncodedRecordHeader header =
      Encode(RecordHeader{RecordKind::kFrames, static_cast<uint32_t>(text.size())});
  Bytes sealed(header.begin(), header.end());
  sealed.resize(header.size() + text.size() + kRecordTagBytes);
  const auto at = [](const auto* bytes) { return reinterpret_cast<const unsigned char*>(bytes); };
  auto* const to = reinterpret_cast<unsigned char*>(sealed.data());
  EVP_CIPHER_CTX* const context = EVP_CIPHER_CTX_new();
  int done = 0;
  EXPECT_EQ(
      EVP_EncryptInit_ex(context, EVP_aes_128_gcm(), nullptr, at(key.data()), at(nonce.data())), 1);
  EVP_EncryptUpdate(context, nullptr, &done, at(header.data()), static_cast<int>(header.size()));
  EVP_EncryptUpdate(context, to + header.size(), &done, at(text.data()),
                    static_cast<int>(text.size()));
  EVP_EncryptFinal_ex(context, to, &done);
  EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, kRecordTagBytes,
                      to + header.size() + text.size());
  EVP_CIPHER_CTX_free(context);
  return sealed;
}

TEST(TcpRecord, IsSealedByKeysThatMoveOn) {
  RecordWriter writer(kSecret);
  Reading reading(0);
  const Bytes said = Filled(20, 1);
  RecordSecret secret = kSecret;
  for (uint64_t number = 0; number <= 2 * RecordCipher::kRecordsPerKey; ++number) {
    const Bytes sealed = Sealed(writer, said);
    ASSERT_EQ(reading.Hear(sealed), absl::OkStatus());
    if (number > 0 && number % RecordCipher::kRecordsPerKey == 0) {
      EXPECT_NE(sealed, SealedByHand(secret, number, said));
      const Bytes next = Derived(secret, "coordd tcp record next", secret.size());
      std::copy_n(reinterpret_cast<const unsigned char*>(next.data()), next.size(), secret.begin());
      EXPECT_EQ(sealed, SealedByHand(secret, number, said));
    } else if (number < 300) {
      EXPECT_EQ(sealed, SealedByHand(secret, number, said));
    }
  }
  EXPECT_EQ(reading.frames.size(), said.size() * (2 * RecordCipher::kRecordsPerKey + 1));
}

struct StreamPair {
  StreamPair() {
    std::array<int, 2> pair;
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair.data()), 0);
    a.emplace(OwnedFd(pair[0]), kSecret, kOtherSecret);
    b.emplace(OwnedFd(pair[1]), kOtherSecret, kSecret);
  }
  std::optional<TcpStream> a, b;
};

TEST(TcpRecord, WaitsHereForTheConnectionToHaveRoom) {
  StreamPair pair;
  const Bytes payload = Filled(3000000, 5);
  Bytes place(payload.size()), room(100000), beside(1000);
  size_t written = 0, placed = 0;
  bool was_full = false;
  while (placed < payload.size()) {
    for (int i = 0; i < 50 && (written < payload.size() || pair.a->has_unsent()); ++i) {
      const iovec part = {const_cast<std::byte*>(payload.data()) + written,
                          payload.size() - written};
      const TcpStream::Moved moved = written < payload.size()
                                         ? pair.a->Write({&part, 1}, absl::MakeSpan(room))
                                         : pair.a->Flush();
      ASSERT_FALSE(moved.is_over) << moved.why;
      written += moved.bytes;
      was_full |= pair.a->has_unsent();
    }
    const TcpStream::Got got =
        pair.b->Read(absl::MakeSpan(place).subspan(placed), absl::MakeSpan(beside));
    ASSERT_FALSE(got.is_over) << got.why;
    placed += got.placed;
    // A small rest goes as headers do.
    std::copy(got.others.begin(), got.others.end(),
              place.begin() + static_cast<std::ptrdiff_t>(placed));
    placed += got.others.size();
  }
  EXPECT_TRUE(was_full);
  EXPECT_EQ(place, payload);
}

TEST(TcpRecord, EndsTheConnectionInOneSentence) {
  const Bytes said = Filled(100, 1);
  Bytes room(1000), place(100000);
  for (const bool cut_off : {false, true}) {
    StreamPair pair;
    RecordWriter writer(kSecret);
    Bytes sealed = Sealed(writer, said);
    cut_off ? sealed.resize(50) : void(sealed[50] ^= std::byte{1});
    ASSERT_EQ(send(pair.a->socket(), sealed.data(), sealed.size(), 0),
              static_cast<ssize_t>(sealed.size()));
    pair.a->EndSending();
    TcpStream::Got got = pair.b->Read(absl::MakeSpan(place), absl::MakeSpan(room));
    if (!got.is_over) got = pair.b->Read(absl::MakeSpan(place), absl::MakeSpan(room));
    EXPECT_TRUE(got.is_over);
    EXPECT_EQ(got.why, cut_off ? "its connection ended in the middle of a record"
                               : "record 1 of its connection is not what was sent: its tag is "
                                 "false");
    EXPECT_EQ(got.placed, 0u);
    EXPECT_TRUE(got.others.empty());
  }
}

}  // namespace
}  // namespace coordd
