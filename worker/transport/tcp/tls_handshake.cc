#include "worker/transport/tcp/tls_handshake.h"

#include <openssl/err.h>

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/transport/tcp/tls_failure.h"

namespace coordd {
namespace {

constexpr unsigned char kAes128GcmSha256[] = {0x13, 0x01};
constexpr size_t kIdentityBytesMax = 200;

constexpr absl::string_view kExporterLabel = "EXPORTER-coordd-tcp-records";
constexpr absl::string_view kFromConnecting = "connecting", kFromAccepting = "accepting";

// As OpenSSL wants a key that both have; nullptr: no memory.
SSL_SESSION* SessionOf(SSL* ssl, const LinkKey& key) {
  const SSL_CIPHER* const cipher = SSL_CIPHER_find(ssl, kAes128GcmSha256);
  OpenSslOwned<SSL_SESSION> session(SSL_SESSION_new());
  const bool made = cipher != nullptr && session != nullptr &&
                    SSL_SESSION_set1_master_key(session.get(), key.data(), key.size()) == 1 &&
                    SSL_SESSION_set_cipher(session.get(), cipher) == 1 &&
                    SSL_SESSION_set_protocol_version(session.get(), TLS1_3_VERSION) == 1;
  return made ? session.release() : nullptr;
}

}  // namespace

TlsHandshake::TlsHandshake(SSL_CTX* context, int socket, std::unique_ptr<State> state)
    : state_(std::move(state)), ssl_(NewTls(context, socket)) {
  if (ssl_ != nullptr) SSL_set_app_data(ssl_.get(), state_.get());
}

TlsHandshake TlsHandshake::Connecting(SSL_CTX* context, int socket, std::string identity,
                                      LinkKey key) {
  TlsHandshake made(context, socket,
                    std::make_unique<State>(State{std::move(identity), key, nullptr}));
  if (made.ssl_ == nullptr) return made;
  // A certificate, whoever's, is not believed: there is nobody to vouch for it.
  SSL_set_verify(made.ssl_.get(), SSL_VERIFY_PEER, nullptr);
  SSL_set_psk_use_session_callback(made.ssl_.get(), &TlsHandshake::UseKey);
  SSL_set_connect_state(made.ssl_.get());
  return made;
}

TlsHandshake TlsHandshake::Accepting(SSL_CTX* context, int socket, FindKey find_key) {
  TlsHandshake made(context, socket,
                    std::make_unique<State>(State{std::string(), {}, std::move(find_key)}));
  if (made.ssl_ == nullptr) return made;
  SSL_set_psk_find_session_callback(made.ssl_.get(), &TlsHandshake::LookForKey);
  SSL_set_accept_state(made.ssl_.get());
  return made;
}

int TlsHandshake::UseKey(SSL* ssl, const EVP_MD*, const unsigned char** identity,
                         size_t* identity_bytes, SSL_SESSION** session) {
  const State& state = *static_cast<const State*>(SSL_get_app_data(ssl));
  *identity = reinterpret_cast<const unsigned char*>(state.identity.data());
  *identity_bytes = state.identity.size();
  *session = SessionOf(ssl, state.key);
  return *session == nullptr ? 0 : 1;
}

// Without a session the handshake goes on, and fails for want of a certificate.
int TlsHandshake::LookForKey(SSL* ssl, const unsigned char* identity, size_t identity_bytes,
                             SSL_SESSION** session) {
  State& state = *static_cast<State*>(SSL_get_app_data(ssl));
  *session = nullptr;
  if (identity_bytes > kIdentityBytesMax) return 1;
  std::string text(reinterpret_cast<const char*>(identity), identity_bytes);
  const std::optional<LinkKey> key = state.find_key(text);
  if (!key.has_value()) return 1;
  state.identity = std::move(text);
  *session = SessionOf(ssl, *key);
  return *session == nullptr ? 0 : 1;
}

TlsHandshake::Outcome TlsHandshake::Step() {
  if (ssl_ == nullptr) {
    failure_ = "no memory for TLS";
    return Outcome::kFailed;
  }
  ERR_clear_error();
  const int result = SSL_do_handshake(ssl_.get());
  if (result == 1) {
    if (SSL_session_reused(ssl_.get()) == 1) return Outcome::kDone;
    failure_ = "it has no key";  // which is not reached: nobody's certificate is believed
    return Outcome::kFailed;
  }
  switch (SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      return Outcome::kWantsRead;
    case SSL_ERROR_WANT_WRITE:
      return Outcome::kWantsWrite;
    case SSL_ERROR_SYSCALL:
      failure_ = "it has ended the connection";
      ERR_clear_error();
      return Outcome::kEnded;
    default: {
      const bool ended =
          ERR_GET_REASON(ERR_peek_last_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING;
      failure_ = HandshakeFailure(ERR_peek_last_error());
      ERR_clear_error();
      return ended ? Outcome::kEnded : Outcome::kFailed;
    }
  }
}

bool TlsHandshake::has_heard() const {
  return ssl_ != nullptr && BIO_number_read(SSL_get_rbio(ssl_.get())) > 0;
}

std::optional<TlsHandshake::Secrets> TlsHandshake::ExportSecrets() {
  // Bound to all of the handshake by TLS; the context says of which direction it is, and of whom.
  const auto exported = [this](absl::string_view direction, RecordSecret& secret) {
    const std::string context = absl::StrCat(direction, " ", state_->identity);
    return SSL_export_keying_material(ssl_.get(), secret.data(), secret.size(),
                                      kExporterLabel.data(), kExporterLabel.size(),
                                      reinterpret_cast<const unsigned char*>(context.data()),
                                      context.size(), 1) == 1;
  };
  const bool connects = SSL_is_server(ssl_.get()) == 0;
  Secrets secrets = {};
  ERR_clear_error();
  if (exported(kFromConnecting, connects ? secrets.sends : secrets.receives) &&
      exported(kFromAccepting, connects ? secrets.receives : secrets.sends)) {
    return secrets;
  }
  failure_ = absl::StrCat("no keys: ", TakeTlsError());
  return std::nullopt;
}

}  // namespace coordd
