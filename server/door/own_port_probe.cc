#include "server/door/own_port_probe.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "common/net/listening_sockets.h"

namespace coordd {
namespace {

// The preface, and settings without any (RFC 9113, 3.4).
constexpr absl::string_view kHttp2Hello("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33);
constexpr char kSettingsFrameType = 4, kTlsHandshakeRecord = 0x16;
constexpr size_t kFrameType = 3;  // where it stands in a frame's head

struct SslDeleter {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  void operator()(SSL* ssl) const { SSL_free(ssl); }
};

// The first message of a client's handshake; empty: OpenSSL makes none.
std::string TlsHello() {
  const std::unique_ptr<SSL_CTX, SslDeleter> context(SSL_CTX_new(TLS_client_method()));
  if (context == nullptr) return "";
  SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION);
  constexpr unsigned char kHttp2[] = {2, 'h', '2'};
  SSL_CTX_set_alpn_protos(context.get(), kHttp2, sizeof(kHttp2));
  const std::unique_ptr<SSL, SslDeleter> ssl(SSL_new(context.get()));
  BIO* out = BIO_new(BIO_s_mem());
  SSL_set_bio(ssl.get(), BIO_new(BIO_s_mem()), out);
  SSL_connect(ssl.get());  // wants to read
  char bytes[4096];
  const int size = BIO_read(out, bytes, sizeof(bytes));
  ERR_clear_error();
  return size > 0 ? std::string(bytes, static_cast<size_t>(size)) : "";
}

}  // namespace

absl::Status ProbeOwnPort(const HostPort& own, bool tls, absl::Duration timeout) {
  COORDD_ASSIGN_OR_RETURN(const OwnedFd fd, ConnectWithin(own, timeout));
  const std::string hello = tls ? TlsHello() : std::string(kHttp2Hello);
  const auto silent = [&](absl::string_view what) {
    return absl::UnavailableError(absl::StrCat("coordd's own port ", own.ToString(),
                                               " takes connections and ", what, " for ",
                                               absl::FormatDuration(timeout)));
  };
  if (send(fd.get(), hello.data(), hello.size(), MSG_NOSIGNAL) < 0) return silent("reads nothing");
  pollfd readable = {fd.get(), POLLIN, 0};
  if (poll(&readable, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout))) != 1)
    return silent("says nothing");
  char answer[kFrameType + 1] = "";
  const ssize_t got = recv(fd.get(), answer, sizeof(answer), MSG_DONTWAIT);
  const bool expected =
      got == static_cast<ssize_t>(sizeof(answer)) &&
      (tls ? answer[0] == kTlsHandshakeRecord : answer[kFrameType] == kSettingsFrameType);
  if (expected) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("coordd's own port ", own.ToString(),
                                             got > 0 ? " gives no answer of " : " closes before ",
                                             tls ? "TLS" : "HTTP/2"));
}

}  // namespace coordd
