#include "worker/transport/tcp/record_cipher.h"

#include <openssl/crypto.h>
#include <openssl/kdf.h>

#include "absl/strings/string_view.h"
#include "common/base/check.h"

namespace coordd {
namespace {

constexpr size_t kKeyBytes = 16;

// HKDF-Expand with SHA-256.
void Expand(const RecordSecret& secret, absl::string_view label, unsigned char* to, size_t size) {
  size_t made = size;
  const OpenSslOwned<EVP_PKEY_CTX> context(EVP_PKEY_CTX_new_id(EVP_PKEY_HKDF, nullptr));
  const bool derived =
      context != nullptr && EVP_PKEY_derive_init(context.get()) == 1 &&
      EVP_PKEY_CTX_set_hkdf_mode(context.get(), EVP_PKEY_HKDEF_MODE_EXPAND_ONLY) == 1 &&
      EVP_PKEY_CTX_set_hkdf_md(context.get(), EVP_sha256()) == 1 &&
      EVP_PKEY_CTX_set1_hkdf_key(context.get(), secret.data(), static_cast<int>(secret.size())) ==
          1 &&
      EVP_PKEY_CTX_add1_hkdf_info(context.get(),
                                  reinterpret_cast<const unsigned char*>(label.data()),
                                  static_cast<int>(label.size())) == 1 &&
      EVP_PKEY_derive(context.get(), to, &made) == 1 && made == size;
  COORDD_CHECK(derived);  // no memory: as elsewhere, the end
}

}  // namespace

EncodedRecordHeader Encode(const RecordHeader& header) {
  EncodedRecordHeader bytes = {};
  for (size_t i = 0; i < sizeof(header.size_bytes); ++i)
    bytes[i] = static_cast<std::byte>(header.size_bytes >> (8 * i));
  bytes[sizeof(header.size_bytes)] = static_cast<std::byte>(header.kind);
  return bytes;
}

bool ParseRecordHeader(const std::byte* bytes, RecordHeader& header) {
  RecordHeader read;
  for (size_t i = 0; i < sizeof(read.size_bytes); ++i)
    read.size_bytes |= std::to_integer<uint32_t>(bytes[i]) << (8 * i);
  const uint8_t kind = std::to_integer<uint8_t>(bytes[4]);
  if (kind != static_cast<uint8_t>(RecordKind::kFrames) &&
      kind != static_cast<uint8_t>(RecordKind::kPayload)) {
    return false;
  }
  read.kind = RecordKind{kind};
  for (size_t i = 5; i < RecordHeader::kBytes; ++i)
    if (bytes[i] != std::byte{0}) return false;
  if (read.size_bytes == 0 || read.size_bytes > read.size_max()) return false;
  header = read;
  return true;
}

RecordSecret NextSecret(const RecordSecret& secret) {
  RecordSecret next = {};
  Expand(secret, "coordd tcp record next", next.data(), next.size());
  return next;
}

RecordCipher::RecordCipher(Direction direction, const RecordSecret& secret)
    : seals_(direction == Direction::kSeals), context_(EVP_CIPHER_CTX_new()), secret_(secret) {
  COORDD_CHECK(context_ != nullptr);
  UseSecret();
}

RecordCipher::~RecordCipher() { OPENSSL_cleanse(secret_.data(), secret_.size()); }

void RecordCipher::UseSecret() {
  std::array<unsigned char, kKeyBytes> key = {};
  Expand(secret_, "coordd tcp record key", key.data(), key.size());
  Expand(secret_, "coordd tcp record nonce", nonce_base_.data(), nonce_base_.size());
  COORDD_CHECK(EVP_CipherInit_ex(context_.get(), EVP_aes_128_gcm(), nullptr, key.data(), nullptr,
                                 seals_ ? 1 : 0) == 1);
  OPENSSL_cleanse(key.data(), key.size());
}

void RecordCipher::Begin(const EncodedRecordHeader& header) {
  if (records_ > 0 && records_ % kRecordsPerKey == 0) {
    secret_ = NextSecret(secret_);
    UseSecret();
  }
  std::array<unsigned char, kNonceBytes> nonce = nonce_base_;
  for (size_t i = 0; i < sizeof(records_); ++i)
    nonce[kNonceBytes - 1 - i] ^= static_cast<unsigned char>(records_ >> (8 * i));
  ++records_;
  int done = 0;
  COORDD_CHECK(EVP_CipherInit_ex(context_.get(), nullptr, nullptr, nullptr, nonce.data(), -1) ==
                   1 &&
               EVP_CipherUpdate(context_.get(), nullptr, &done,
                                reinterpret_cast<const unsigned char*>(header.data()),
                                static_cast<int>(header.size())) == 1);
}

void RecordCipher::Update(const std::byte* from, std::byte* to, size_t size) {
  int done = 0;
  COORDD_CHECK(EVP_CipherUpdate(context_.get(), reinterpret_cast<unsigned char*>(to), &done,
                                reinterpret_cast<const unsigned char*>(from),
                                static_cast<int>(size)) == 1 &&
               static_cast<size_t>(done) == size);
}

void RecordCipher::Seal(std::byte* tag) {
  int done = 0;
  unsigned char none = 0;
  COORDD_CHECK(EVP_CipherFinal_ex(context_.get(), &none, &done) == 1 &&
               EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_GET_TAG,
                                   static_cast<int>(kRecordTagBytes), tag) == 1);
}

bool RecordCipher::Open(const std::byte* tag) {
  int done = 0;
  unsigned char none = 0;
  COORDD_CHECK(EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_SET_TAG,
                                   static_cast<int>(kRecordTagBytes),
                                   const_cast<std::byte*>(tag)) == 1);
  return EVP_CipherFinal_ex(context_.get(), &none, &done) == 1;
}

}  // namespace coordd
