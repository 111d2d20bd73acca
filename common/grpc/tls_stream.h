// What a client says out of TLS. (io)
#pragma once

#include <openssl/types.h>

#include <memory>
#include <string>
#include <vector>

#include "common/net/client_stream.h"

namespace coordd {

// The server's side of TLS.
class TlsStream : public ClientStream {
 public:
  // What the client's certificate says, once Begin is done; it was verified. Empty: it has none.
  virtual bool has_certificate() const = 0;
  virtual std::vector<std::string> Uris() const = 0;
  virtual std::string CommonName() const = 0;
  // What the client has sent of TLS that no honest one does, a phrase: the last read has failed for
  // it. Empty: nothing.
  virtual const std::string& flood() const = 0;

  // `wants_protocol`: the client has to ask for one that `context` speaks (ALPN). Null: there is no
  // memory for it.
  static std::unique_ptr<TlsStream> Over(int fd, SSL_CTX* context, bool wants_protocol);
};

}  // namespace coordd
