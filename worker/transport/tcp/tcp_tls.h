// Objects of OpenSSL that free themselves, and TLS over a socket of ours. (OpenSSL)
#pragma once

#include <openssl/evp.h>
#include <openssl/ssl.h>

#include <memory>
#include <string>

namespace coordd {

struct OpenSslFreer {
  void operator()(SSL_CTX* p) const { SSL_CTX_free(p); }
  void operator()(SSL* p) const { SSL_free(p); }
  void operator()(SSL_SESSION* p) const { SSL_SESSION_free(p); }
  void operator()(EVP_PKEY_CTX* p) const { EVP_PKEY_CTX_free(p); }
  void operator()(EVP_CIPHER_CTX* p) const { EVP_CIPHER_CTX_free(p); }
  void operator()(BIO_METHOD* p) const { BIO_meth_free(p); }
};
template <typename T>
using OpenSslOwned = std::unique_ptr<T, OpenSslFreer>;

// TLS over the socket, which stays the caller's. As OpenSSL's own way, but that the end of a peer
// raises no signal. nullptr: no memory.
OpenSslOwned<SSL> NewTls(SSL_CTX* context, int socket);

// What has failed last on this thread, for people; forgets it. Empty: nothing of OpenSSL's.
std::string TakeTlsError();

}  // namespace coordd
