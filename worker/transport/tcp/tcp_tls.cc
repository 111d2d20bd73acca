#include "worker/transport/tcp/tcp_tls.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>

namespace coordd {
namespace {

int SocketOf(BIO* bio) { return *static_cast<const int*>(BIO_get_data(bio)); }

int Destroy(BIO* bio) {
  delete static_cast<int*>(BIO_get_data(bio));
  return 1;
}

int ReadSocket(BIO* bio, char* to, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t got = recv(SocketOf(bio), to, static_cast<size_t>(size), 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_read(bio);
  if (got == 0) BIO_set_flags(bio, BIO_FLAGS_IN_EOF);
  return static_cast<int>(got);
}

int WriteSocket(BIO* bio, const char* from, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t sent = send(SocketOf(bio), from, static_cast<size_t>(size), MSG_NOSIGNAL);
  if (sent < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_write(bio);
  return static_cast<int>(sent);
}

long Control(BIO* bio, int command, long, void*) {
  if (command == BIO_CTRL_EOF) return BIO_test_flags(bio, BIO_FLAGS_IN_EOF) != 0 ? 1 : 0;
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

BIO_METHOD* SocketMethod() {
  static const OpenSslOwned<BIO_METHOD> method = [] {
    OpenSslOwned<BIO_METHOD> made(
        BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket"));
    if (made == nullptr) return made;
    BIO_meth_set_read(made.get(), &ReadSocket);
    BIO_meth_set_write(made.get(), &WriteSocket);
    BIO_meth_set_ctrl(made.get(), &Control);
    BIO_meth_set_destroy(made.get(), &Destroy);
    return made;
  }();
  return method.get();
}

}  // namespace

OpenSslOwned<SSL> NewTls(SSL_CTX* context, int socket) {
  OpenSslOwned<SSL> ssl(SSL_new(context));
  if (ssl == nullptr || SocketMethod() == nullptr) return nullptr;
  BIO* const bio = BIO_new(SocketMethod());
  if (bio == nullptr) return nullptr;
  BIO_set_data(bio, std::make_unique<int>(socket).release());
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl.get(), bio, bio);
  return ssl;
}

std::string TakeTlsError() {
  const unsigned long error = ERR_peek_last_error();
  ERR_clear_error();
  if (error == 0) return "";
  const char* const reason = ERR_reason_error_string(error);
  return reason == nullptr ? "TLS failed" : reason;
}

}  // namespace coordd
