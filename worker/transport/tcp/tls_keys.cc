#include "worker/transport/tcp/tls_keys.h"

#include <openssl/kdf.h>

#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace coordd {
namespace {

constexpr absl::string_view kSalt = "coordd tcp link";
constexpr absl::string_view kNoPort = "-";

const unsigned char* BytesOf(absl::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

std::optional<Rank> RankOf(absl::string_view text) {
  int32_t rank = -1;
  if (!absl::SimpleAtoi(text, &rank) || rank < 0) return std::nullopt;
  return Rank{rank};
}

}  // namespace

std::string LinkIdentity::ToText() const {
  return absl::StrCat(
      kTcpProtocol, " ", ToInt(from), " ", ToInt(to), " ", encrypts ? kEncryptedWord : kPlainWord,
      " ", probe_port.has_value() ? probe_port->ToString() : std::string(kNoPort), " ", number);
}

absl::StatusOr<LinkIdentity> LinkIdentity::Parse(absl::string_view text) {
  const std::vector<absl::string_view> words = absl::StrSplit(text, ' ');
  const auto refused = [] { return absl::InvalidArgumentError("it says something else"); };
  if (words.size() != 6 || words[0] != kTcpProtocol) return refused();
  const std::optional<Rank> from = RankOf(words[1]), to = RankOf(words[2]);
  if (!from.has_value() || !to.has_value()) return refused();
  LinkIdentity identity{*from, *to, words[3] == kEncryptedWord, std::nullopt, 0};
  if (!absl::SimpleAtoi(words[5], &identity.number) || identity.number < 0 ||
      identity.number >= kTcpConnectionsMax) {
    return refused();
  }
  if (words[4] != kNoPort) {
    COORDD_ASSIGN_OR_RETURN(identity.probe_port, ParseHostPort(words[4]));
  }
  if (identity.ToText() != text) return refused();
  return identity;
}

LinkKey DeriveKey(absl::string_view secret, absl::string_view identity) {
  LinkKey key = {};
  size_t size = key.size();
  const OpenSslOwned<EVP_PKEY_CTX> context(EVP_PKEY_CTX_new_id(EVP_PKEY_HKDF, nullptr));
  const bool derived = context != nullptr && EVP_PKEY_derive_init(context.get()) == 1 &&
                       EVP_PKEY_CTX_set_hkdf_md(context.get(), EVP_sha256()) == 1 &&
                       EVP_PKEY_CTX_set1_hkdf_salt(context.get(), BytesOf(kSalt),
                                                   static_cast<int>(kSalt.size())) == 1 &&
                       EVP_PKEY_CTX_set1_hkdf_key(context.get(), BytesOf(secret),
                                                  static_cast<int>(secret.size())) == 1 &&
                       EVP_PKEY_CTX_add1_hkdf_info(context.get(), BytesOf(identity),
                                                   static_cast<int>(identity.size())) == 1 &&
                       EVP_PKEY_derive(context.get(), key.data(), &size) == 1 && size == key.size();
  COORDD_CHECK(derived);  // no memory: as elsewhere, the end
  return key;
}

absl::StatusOr<OpenSslOwned<SSL_CTX>> NewTlsContext() {
  OpenSslOwned<SSL_CTX> context(SSL_CTX_new(TLS_method()));
  if (context == nullptr || SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_max_proto_version(context.get(), TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_ciphersuites(context.get(), "TLS_AES_128_GCM_SHA256") != 1 ||
      SSL_CTX_set_num_tickets(context.get(), 0) != 1) {
    return absl::UnavailableError(absl::StrCat("TLS 1.3: ", TakeTlsError()));
  }
  SSL_CTX_set_options(context.get(), SSL_OP_NO_TICKET);
  SSL_CTX_clear_options(context.get(), SSL_OP_ENABLE_MIDDLEBOX_COMPAT);
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE |
                                      SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                      SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_read_ahead(context.get(), 0);
  return context;
}

}  // namespace coordd
