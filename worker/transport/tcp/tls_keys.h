// What a rank needs to know to be believed by another one, and what the two say of themselves
// before they are. (OpenSSL)
#pragma once

#include <openssl/types.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/net/address.h"
#include "common/protocol/types.h"
#include "worker/transport/tcp/tcp_tls.h"

namespace coordd {

// The first word of what is said: ranks that speak otherwise do not believe each other.
inline constexpr absl::string_view kTcpProtocol = "coordd-tcp/5";
// How it is written whether what follows the proof is encrypted.
inline constexpr absl::string_view kEncryptedWord = "encrypted", kPlainWord = "plain";

// Between two ranks.
inline constexpr int32_t kTcpConnectionsMax = 16;

// What who connects says in the open, and the key depends on: nobody can say it who has no key, and
// nobody change it on the way.
struct LinkIdentity {
  Rank from;  // who connects
  Rank to;
  bool encrypts = false;               // all that follows the handshake
  std::optional<HostPort> probe_port;  // of who connects
  int32_t number = 0;                  // of this connection, among those of the two

  std::string ToText() const;
  // INVALID_ARGUMENT.
  static absl::StatusOr<LinkIdentity> Parse(absl::string_view text);
  friend bool operator==(const LinkIdentity&, const LinkIdentity&) = default;
};

// A rank's secret of one generation: whoever may read the generation's store is believed, and
// nobody else.
using LinkSecret = std::string;  // 64 hexadecimal digits, SecretHex(32)
using LinkKey = std::array<unsigned char, 32>;

// HKDF-SHA256 of the secret of who is connected to, bound to what is said.
LinkKey DeriveKey(absl::string_view secret, absl::string_view identity);

// TLS 1.3 with a key that both have (psk_dhe_ke) and nothing else: no certificates, no tickets, no
// early data. UNAVAILABLE: OpenSSL does not have it.
absl::StatusOr<OpenSslOwned<SSL_CTX>> NewTlsContext();

}  // namespace coordd
