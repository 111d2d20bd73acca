// One handshake, by which two ranks prove to each other that they belong to one generation. (io)
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "worker/transport/tcp/record_cipher.h"
#include "worker/transport/tcp/tcp_tls.h"
#include "worker/transport/tcp/tls_keys.h"

namespace coordd {

// One thread uses it.
class TlsHandshake {
 public:
  enum class Outcome { kDone, kWantsRead, kWantsWrite, kEnded, kFailed };
  // The key of who says this of itself; nullopt: it is not to be believed.
  using FindKey = std::function<std::optional<LinkKey>(absl::string_view identity)>;

  // Over a socket that does not block, and outlives it.
  static TlsHandshake Connecting(SSL_CTX* context, int socket, std::string identity, LinkKey key);
  static TlsHandshake Accepting(SSL_CTX* context, int socket, FindKey find_key);

  // Goes on as far as it can. Reads nothing beyond the handshake's last byte.
  Outcome Step();
  // Of kFailed and kEnded, for people.
  const std::string& failure() const { return failure_; }
  // What who has connected says of itself, and has proved behind kDone; empty: it has not come.
  const std::string& identity() const { return state_->identity; }
  // Whether the other side has said anything, if only a byte.
  bool has_heard() const;
  // Behind kDone: the secrets of what follows, for who encrypts it; nobody else has them, and no
  // two connections the same. nullopt: OpenSSL has failed, and failure() says how.
  struct Secrets {
    RecordSecret sends, receives;
  };
  std::optional<Secrets> ExportSecrets();

 private:
  // What OpenSSL's callbacks see; its address stays.
  struct State {
    std::string identity;
    LinkKey key = {};
    FindKey find_key;
  };

  TlsHandshake(SSL_CTX* context, int socket, std::unique_ptr<State> state);
  static int UseKey(SSL* ssl, const EVP_MD* digest, const unsigned char** identity,
                    size_t* identity_bytes, SSL_SESSION** session);
  static int LookForKey(SSL* ssl, const unsigned char* identity, size_t identity_bytes,
                        SSL_SESSION** session);

  std::unique_ptr<State> state_;
  OpenSslOwned<SSL> ssl_;
  std::string failure_;
};

}  // namespace coordd
