#include "common/grpc/tls_stream.h"

#include <openssl/asn1.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/socket.h>

#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/identity.h"
#include "common/base/utf8.h"
#include "common/grpc/certificate_names.h"
#include "common/grpc/server_certificates.h"
#include "common/grpc/tls_handles.h"

namespace coordd {
namespace {

using Outcome = ClientStream::Outcome;

constexpr size_t kMaxNameBytes = 100;  // in a line of the log

std::string CommonNameOf(const X509* certificate) {
  const X509_NAME* const subject = X509_get_subject_name(certificate);
  const int at = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
  return at < 0 ? "" : TextOf(X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at)));
}

// " (worker/train)", or its common name; empty: it has neither.
std::string WhoseText(const X509* certificate) {
  std::string name = CommonNameOf(certificate);
  const absl::StatusOr<Identity> identity = IdentityOf(UrisOf(certificate), name);
  if (identity.ok() && identity->role != Role::kNone) name = ToString(*identity);
  name = PrintableText(ShortenedText(name, kMaxNameBytes));
  return name.empty() ? "" : absl::StrCat(" (", name, ")");
}

// Whether nobody whom we trust has signed it.
bool IsAStrangers(int error) {
  return error == X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY ||
         error == X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE ||
         error == X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT ||
         error == X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN;
}

class Tls final : public TlsStream {
 public:
  Tls(TlsOwned<SSL> ssl, bool wants_protocol)
      : ssl_(std::move(ssl)), wants_protocol_(wants_protocol) {
    SSL_set_app_data(ssl_.get(), this);
    SSL_set_verify(ssl_.get(), SSL_get_verify_mode(ssl_.get()), &OnVerified);
    SSL_set_msg_callback(ssl_.get(), &OnMessage);
    SSL_set_msg_callback_arg(ssl_.get(), this);
  }

  Outcome Begin() override {
    ERR_clear_error();
    const int result = SSL_accept(ssl_.get());
    if (result != 1) return After(result);
    const unsigned char* protocol = nullptr;
    unsigned size = 0;
    SSL_get0_alpn_selected(ssl_.get(), &protocol, &size);
    // There is one only that can be selected.
    if (size != 0 || !wants_protocol_) return Outcome::kDone;
    failure_ = "it asks for no HTTP/2";
    return Outcome::kFailed;
  }
  const std::string& failure() const override { return failure_; }
  const std::string& flood() const override { return flood_; }

  Moved Read(char* to, size_t size) override {
    ERR_clear_error();
    size_t moved = 0;
    const int result = SSL_read_ex(ssl_.get(), to, size, &moved);
    read_ += moved;
    if (HasFlooded()) {
      ERR_clear_error();
      flood_ = absl::StrCat("more than ", kKeyUpdates, " KeyUpdate messages of TLS, and one for ",
                            kBytesPerKeyUpdate >> 20, " MiB of data each");
      return Moved{Outcome::kFailed};
    }
    return result == 1 ? Moved{Outcome::kDone, moved} : Moved{After(result)};
  }
  Moved Write(absl::string_view bytes) override {
    ERR_clear_error();
    size_t moved = 0;
    const int result = SSL_write_ex(ssl_.get(), bytes.data(), bytes.size(), &moved);
    return result == 1 ? Moved{Outcome::kDone, moved} : Moved{After(result)};
  }
  bool HasMore() const override { return SSL_has_pending(ssl_.get()) == 1; }
  void End() override {
    ERR_clear_error();
    SSL_shutdown(ssl_.get());
    ERR_clear_error();
  }

  bool has_certificate() const override { return SSL_get0_peer_certificate(ssl_.get()) != nullptr; }
  std::vector<std::string> Uris() const override {
    const X509* const certificate = SSL_get0_peer_certificate(ssl_.get());
    return certificate == nullptr ? std::vector<std::string>() : UrisOf(certificate);
  }
  std::string CommonName() const override {
    const X509* const certificate = SSL_get0_peer_certificate(ssl_.get());
    return certificate == nullptr ? "" : CommonNameOf(certificate);
  }

 private:
  // OpenSSL's clients have new keys after some hundred GiB.
  static constexpr uint64_t kKeyUpdates = 32, kBytesPerKeyUpdate = uint64_t{1} << 20;

  static int OnVerified(int ok, X509_STORE_CTX* store) {
    auto* const ssl =
        static_cast<SSL*>(X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx()));
    auto* const tls = static_cast<Tls*>(SSL_get_app_data(ssl));
    return tls->Verified(ok == 1, store) ? 1 : 0;
  }
  static void OnMessage(int of_ours, int /*version*/, int type, const void* bytes, size_t size,
                        SSL* ssl, void* of) {
    const bool is_key_update = of_ours == 0 && type == SSL3_RT_HANDSHAKE && size > 0 &&
                               *static_cast<const unsigned char*>(bytes) == SSL3_MT_KEY_UPDATE;
    if (!is_key_update) return;
    auto* const tls = static_cast<Tls*>(of);
    ++tls->key_updates_;
    // OpenSSL reads on behind such a message by itself, for as long as the next ones come.
    if (tls->HasFlooded()) shutdown(SSL_get_fd(ssl), SHUT_RDWR);
  }
  bool HasFlooded() const { return key_updates_ > kKeyUpdates + read_ / kBytesPerKeyUpdate; }

  // One certificate of the client's chain was looked at. Whether it will do.
  bool Verified(bool ok, X509_STORE_CTX* store) {
    X509* const certificate = X509_STORE_CTX_get_current_cert(store);
    if (certificate == nullptr) return ok;
    const bool is_own = X509_STORE_CTX_get_error_depth(store) == 0;
    const absl::string_view which = is_own ? "its certificate" : "the authority of its certificate";
    const int error = ok ? X509_V_OK : X509_STORE_CTX_get_error(store);
    if (error == X509_V_ERR_CERT_NOT_YET_VALID) {
      unverified_ =
          absl::StrCat(which, WhoseText(certificate), " is not valid yet: it becomes so at ",
                       TimeText(X509_get0_notBefore(certificate)), " by this machine's clock");
    }
    // Its signature was found to be an authority's of ours before its time was looked at.
    if (error == X509_V_ERR_CERT_HAS_EXPIRED) {
      unverified_ = absl::StrCat(which, WhoseText(certificate), " has expired at ",
                                 TimeText(X509_get0_notAfter(certificate)));
    }
    if (IsAStrangers(error)) {
      const std::string mark = SignersMark(X509_STORE_CTX_get0_cert(store));
      unverified_ = absl::StrCat("its certificate is not of the authority in --tls-ca",
                                 mark.empty() ? "" : ", but of authority ", mark);
    }
    if (ok && is_own && (X509_get_extension_flags(certificate) & EXFLAG_CA) != 0) {
      unverified_ = "its certificate is an authority's, which signs others' and is nobody's own";
      X509_STORE_CTX_set_error(store, X509_V_ERR_INVALID_CA);
      return false;
    }
    return ok;
  }

  Outcome After(int result) {
    switch (SSL_get_error(ssl_.get(), result)) {
      case SSL_ERROR_WANT_READ:
        return Outcome::kWantsRead;
      case SSL_ERROR_WANT_WRITE:
        return Outcome::kWantsWrite;
      case SSL_ERROR_ZERO_RETURN:
        return Outcome::kEnded;
      case SSL_ERROR_SSL:
        NoteFailure();
        return Outcome::kFailed;
      default:
        ERR_clear_error();
        return Outcome::kFailed;
    }
  }

  void NoteFailure() {
    char text[256] = "";
    ERR_error_string_n(ERR_peek_last_error(), text, sizeof(text));
    const unsigned long reason = ERR_GET_REASON(ERR_peek_last_error());
    ERR_clear_error();
    if (reason == SSL_R_UNEXPECTED_EOF_WHILE_READING) return;  // gone, without a word
    failure_ = unverified_;
    if (!failure_.empty()) return;
    if (reason == SSL_R_EXCESSIVE_MESSAGE_SIZE) {
      failure_ = absl::StrCat("its certificate and those with it are more than the ",
                              ServerCertificates::kMostChainBytes >> 10, " KiB that they may have");
      return;
    }
    failure_ = text;
    const long verified = SSL_get_verify_result(ssl_.get());
    if (verified != X509_V_OK)
      absl::StrAppend(&failure_, ": ", X509_verify_cert_error_string(verified));
  }

  const TlsOwned<SSL> ssl_;
  const bool wants_protocol_;
  std::string failure_, flood_;
  std::string unverified_;  // why the client's certificate will not do, where we know better
  uint64_t key_updates_ = 0, read_ = 0;  // messages, bytes
};

}  // namespace

std::unique_ptr<TlsStream> TlsStream::Over(int fd, SSL_CTX* context, bool wants_protocol) {
  TlsOwned<SSL> ssl(SSL_new(context));
  if (ssl == nullptr || SSL_set_fd(ssl.get(), fd) != 1) {
    ERR_clear_error();
    return nullptr;
  }
  return std::make_unique<Tls>(std::move(ssl), wants_protocol);
}

}  // namespace coordd
