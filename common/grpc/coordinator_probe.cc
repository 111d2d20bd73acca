#include "common/grpc/coordinator_probe.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/owned_fd.h"
#include "common/base/status_macros.h"
#include "common/grpc/certificate_names.h"
#include "common/grpc/own_certificate.h"
#include "common/grpc/tls_handles.h"
#include "common/net/wire.h"

namespace coordd {
namespace {

// HTTP/2's preface and an empty SETTINGS frame (RFC 9113, 3.4 and 6.5).
constexpr absl::string_view kHello("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33);
// A frame's head: enough to tell what is spoken.
constexpr size_t kHeadBytes = 9;
constexpr int kMaxHandshakeTurns = 1000;

enum class Spoken { kHttp2, kHttp1, kTls, kOther, kClosed, kNothing };

Spoken WhatIs(absl::string_view head, bool closed) {
  if (head.empty()) return closed ? Spoken::kClosed : Spoken::kNothing;
  // Servers of HTTP/1.0 answer an unknown version with nothing but a page.
  if (absl::StartsWith(head, "HTTP/") || head[0] == '<') return Spoken::kHttp1;
  if (head.size() >= 2 && (head[0] == 0x15 || head[0] == 0x16) && head[1] == 3) return Spoken::kTls;
  return head.size() >= 4 && head[0] == 0 && head[3] == 4 ? Spoken::kHttp2 : Spoken::kOther;
}

absl::StatusOr<Spoken> AskPlain(const HostPort& address, absl::Time deadline, Clock& clock) {
  COORDD_ASSIGN_OR_RETURN(Wire wire, Wire::Connect(address, deadline, clock));
  std::string head;
  wire.Send(kHello);  // who sends no more may have answered
  while (head.size() < kHeadBytes) {
    const std::string more = wire.Receive();
    if (more.empty()) break;
    head += more;
  }
  return WhatIs(head, wire.closed());
}

absl::Status NoCoordd(const HostPort& address, absl::string_view why) {
  return absl::FailedPreconditionError(
      absl::StrCat("what listens at ", address.ToString(), " is no coordd: ", why));
}

absl::Status Verdict(Spoken spoken, const HostPort& address, bool with_tls) {
  switch (spoken) {
    case Spoken::kHttp2:
      if (!with_tls) return absl::OkStatus();
      return absl::FailedPreconditionError(absl::StrCat(
          "coordd at ", address.ToString(),
          " speaks no TLS: leave out --tls-ca, --tls-cert, --tls-key and COORDD_TLS_*, or start it "
          "with --tls-cert, --tls-key and --tls-ca"));
    case Spoken::kHttp1:
      return NoCoordd(address,
                      "it answers as an HTTP server (coordd's status page has a port of its own)");
    case Spoken::kTls:
      if (with_tls) return NoCoordd(address, "it speaks TLS, and no gRPC over it");
      return absl::FailedPreconditionError(
          absl::StrCat("what listens at ", address.ToString(),
                       " speaks TLS: give --tls-ca, --tls-cert and --tls-key, or COORDD_TLS_CA, "
                       "COORDD_TLS_CERT and COORDD_TLS_KEY"));
    case Spoken::kOther:
      return NoCoordd(address, "it answers in another protocol than gRPC");
    case Spoken::kClosed:
      return absl::UnavailableError(
          "it closes the connection without a word: it is no coordd, or one to which more come "
          "than it lets in");
    case Spoken::kNothing:
      break;
  }
  return absl::UnavailableError(
      "it takes connections and says nothing: it is no coordd, or one that hangs");
}

// A client's side of TLS over a Wire, through memory, so that no write raises SIGPIPE.
class TlsTalk {
 public:
  TlsTalk(Wire wire, SSL_CTX* context) : wire_(std::move(wire)), ssl_(SSL_new(context)) {
    if (ssl_ == nullptr) return;
    in_ = BIO_new(BIO_s_mem());
    out_ = BIO_new(BIO_s_mem());
    SSL_set_bio(ssl_.get(), in_, out_);  // which owns them now
    SSL_set_connect_state(ssl_.get());
    SSL_set_app_data(ssl_.get(), this);
    SSL_set_verify(ssl_.get(), SSL_VERIFY_PEER, &OnVerified);
  }

  SSL* ssl() { return ssl_.get(); }
  bool closed() const { return wire_.closed(); }

  // `turn` until it returns over 0. False: an error of TLS's, or the other side has gone, or is
  // silent.
  template <typename Turn>
  bool Do(Turn turn) {
    for (int i = 0; i < kMaxHandshakeTurns; ++i) {
      ERR_clear_error();
      const int done = turn(ssl_.get());
      const int error = SSL_get_error(ssl_.get(), done);
      const bool is_fatal = done <= 0 && error != SSL_ERROR_WANT_READ;
      if (is_fatal) reason_ = ERR_GET_REASON(ERR_peek_error());
      char* data = nullptr;
      const long size = BIO_get_mem_data(out_, &data);
      if (size > 0) wire_.Send({data, static_cast<size_t>(size)});
      BIO_reset(out_);
      if (done > 0) return true;
      if (is_fatal) return false;
      const std::string more = wire_.Receive();
      if (more.empty()) return false;
      BIO_write(in_, more.data(), static_cast<int>(more.size()));
    }
    return false;
  }

  // OpenSSL's number of what failed; 0: nothing of TLS's.
  int reason() const { return reason_; }
  // The mark of the key that has signed the other side's certificate, where that will not do.
  const std::string& signer() const { return signer_; }

 private:
  static int OnVerified(int ok, X509_STORE_CTX* store) {
    auto* const ssl =
        static_cast<SSL*>(X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx()));
    X509* const certificate = X509_STORE_CTX_get0_cert(store);
    if (ok != 1 && certificate != nullptr)
      static_cast<TlsTalk*>(SSL_get_app_data(ssl))->signer_ = SignersMark(certificate);
    return ok;
  }

  Wire wire_;
  TlsOwned<SSL> ssl_;
  BIO* in_ = nullptr;   // ssl_'s
  BIO* out_ = nullptr;  // ssl_'s
  int reason_ = 0;
  std::string signer_;
};

TlsOwned<SSL_CTX> ContextOf(const TlsFiles& tls) {
  static constexpr unsigned char kHttp2[] = {2, 'h', '2'};
  TlsOwned<SSL_CTX> context(SSL_CTX_new(TLS_client_method()));
  if (context == nullptr || SSL_CTX_load_verify_file(context.get(), tls.ca.c_str()) != 1 ||
      SSL_CTX_use_certificate_chain_file(context.get(), tls.cert.c_str()) != 1 ||
      SSL_CTX_use_PrivateKey_file(context.get(), tls.key.c_str(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_set_alpn_protos(context.get(), kHttp2, sizeof(kHttp2)) != 0) {
    return nullptr;
  }
  X509_STORE_set_flags(SSL_CTX_get_cert_store(context.get()),
                       X509_V_FLAG_PARTIAL_CHAIN | X509_V_FLAG_TRUSTED_FIRST);
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  return context;
}

void ExpectName(SSL* ssl, const std::string& host) {
  unsigned char address[sizeof(in6_addr)];
  const bool is_address = inet_pton(AF_INET, host.c_str(), address) == 1 ||
                          inet_pton(AF_INET6, host.c_str(), address) == 1;
  if (is_address) {
    X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host.c_str());
    return;
  }
  SSL_set1_host(ssl, host.c_str());
  SSL_set_tlsext_host_name(ssl, host.c_str());
}

// `signer`: of the key that has signed it.
absl::Status CertificateRefused(long error, const std::string& signer, const HostPort& address,
                                const TlsFiles& tls) {
  const std::string whose = absl::StrCat("the certificate of coordd at ", address.ToString());
  if (error == X509_V_ERR_HOSTNAME_MISMATCH || error == X509_V_ERR_IP_ADDRESS_MISMATCH) {
    return absl::UnauthenticatedError(absl::StrCat(
        whose, " is for other names than ", address.host,
        ": expected one of those, or a certificate with it, which is made where that one was: "
        "coordctl certs DIR --role server --renew --name ",
        address.host, ", and a --name for each of the others"));
  }
  const std::string said = X509_verify_cert_error_string(error);
  if (error == X509_V_ERR_CERT_HAS_EXPIRED || error == X509_V_ERR_CERT_NOT_YET_VALID ||
      error == X509_V_ERR_INVALID_PURPOSE) {
    return absl::UnauthenticatedError(absl::StrCat(whose, " is not accepted here: ", said));
  }
  return absl::UnauthenticatedError(absl::StrCat(
      whose, " is not of the authority in ", tls.ca, ": expected files of one `coordctl certs` (",
      said, signer.empty() ? "" : absl::StrCat("; coordd's is of authority ", signer),
      "; the file is of ", AuthoritiesIn(tls.ca), ")"));
}

// An alert says little, and may say the wrong thing: one of "unknown ca" is sent for a path that is
// too long, too. Names of authorities may be the same by chance.
absl::Status OursRefused(absl::string_view said, const HostPort& address, const TlsFiles& tls) {
  const absl::StatusOr<CertificateFacts> ours = ReadCertificateFacts(tls.cert);
  const std::string refused =
      absl::StrCat("coordd at ", address.ToString(), " does not take the certificate in ", tls.cert,
                   ": expected one ");
  if (ours.ok() && absl::StrContains(AuthoritiesIn(tls.ca), ours->authority)) {
    return absl::UnauthenticatedError(
        absl::StrCat(refused, "for clients and of the authority that it was given with --tls-ca",
                     said, "; this one says that it is of ", ours->authority, ", as ", tls.ca,
                     " is, so coordd's log says what will not do"));
  }
  return absl::UnauthenticatedError(
      absl::StrCat(refused, "of the authority that it was given with --tls-ca", said,
                   ours.ok() ? absl::StrCat("; this one is of ", ours->authority) : ""));
}

std::string SaidBy(int reason) {
  const char* said = ERR_reason_error_string(ERR_PACK(ERR_LIB_SSL, 0, reason));
  return said == nullptr ? "" : absl::StrCat(" (", said, ")");
}

// Nothing: it does not answer in TLS, or as a coordd without it does.
std::optional<absl::Status> AskTls(const HostPort& address, const TlsFiles& tls,
                                   absl::Time deadline, Clock& clock) {
  const TlsOwned<SSL_CTX> context = ContextOf(tls);
  ERR_clear_error();
  if (context == nullptr)
    return absl::UnavailableError("it cannot be reached: TLS is set up wrong");
  absl::StatusOr<Wire> wire = Wire::Connect(address, deadline, clock);
  if (!wire.ok()) return wire.status();
  TlsTalk talk(*std::move(wire), context.get());
  if (talk.ssl() == nullptr) return std::nullopt;
  ExpectName(talk.ssl(), address.host);
  if (!talk.Do([](SSL* ssl) { return SSL_do_handshake(ssl); })) {
    const long verified = SSL_get_verify_result(talk.ssl());
    if (verified != X509_V_OK) return CertificateRefused(verified, talk.signer(), address, tls);
    const int reason = talk.reason();
    // A crowded coordd may end it here: nothing is known then of what it speaks.
    if (reason == 0)
      return Verdict(talk.closed() ? Spoken::kClosed : Spoken::kNothing, address, true);
    // TlsFullRefusal of server/door.
    if (reason == SSL_AD_REASON_OFFSET + SSL_AD_INTERNAL_ERROR) {
      return absl::UnavailableError(
          "it takes no more connections now: its log says how many it takes, and from whom");
    }
    // A coordd without TLS says no_application_protocol; any other alert is of one with it.
    if (reason > SSL_AD_REASON_OFFSET &&
        reason != SSL_AD_REASON_OFFSET + SSL_AD_NO_APPLICATION_PROTOCOL) {
      return absl::UnavailableError(absl::StrCat("its TLS handshake fails", SaidBy(reason)));
    }
    return std::nullopt;
  }
  std::string head(kHeadBytes, '\0');
  size_t got = 0;
  talk.Do([](SSL* ssl) { return SSL_write(ssl, kHello.data(), static_cast<int>(kHello.size())); });
  const bool answered = talk.Do([&](SSL* ssl) {
    const int more = SSL_read(ssl, head.data() + got, static_cast<int>(head.size() - got));
    if (more > 0) got += static_cast<size_t>(more);
    return more;
  });
  head.resize(got);
  if (answered) {
    const Spoken spoken = WhatIs(head, false);
    return spoken == Spoken::kHttp2 ? absl::OkStatus() : Verdict(spoken, address, true);
  }
  if (talk.reason() >= SSL_AD_REASON_OFFSET) {
    return OursRefused(SaidBy(talk.reason()), address, tls);
  }
  if (!talk.closed()) return Verdict(Spoken::kNothing, address, true);
  return absl::AbortedError(OursRefused("", address, tls).message());
}

}  // namespace

absl::Status ProbeCoordinator(const HostPort& address, const TlsFiles& tls, absl::Duration within,
                              Clock& clock) {
  if (tls.enabled()) {
    const std::optional<absl::Status> said = AskTls(address, tls, clock.Now() + within, clock);
    ERR_clear_error();
    if (said.has_value()) return *said;
  }
  COORDD_ASSIGN_OR_RETURN(const Spoken spoken, AskPlain(address, clock.Now() + within, clock));
  return Verdict(spoken, address, tls.enabled());
}

}  // namespace coordd
