#include "common/grpc/own_certificate.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/grpc/tls_handles.h"

namespace coordd {
namespace {

// A chain has a handful; more is a mistake.
constexpr int kMaxChain = 100;

bool NamesSomebody(X509* certificate) {
  GENERAL_NAMES* names = static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr));
  const bool has_names = names != nullptr;
  GENERAL_NAMES_free(names);
  return has_names ||
         X509_NAME_get_index_by_NID(X509_get_subject_name(certificate), NID_commonName, -1) >= 0;
}

std::string WhyRefused(int error, int depth, const TlsFiles& files, TlsSide side) {
  const bool serves = side == TlsSide::kServer;
  switch (error) {
    case X509_V_ERR_INVALID_PURPOSE:
      return absl::StrCat(" is not for ", serves ? "servers" : "clients", ": expected one with ",
                          serves ? "serverAuth" : "clientAuth", " (", serves ? "server" : "worker",
                          ".crt of `coordctl certs`)");
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return depth > 0 ? absl::StrCat(" is of an authority that is not valid yet (", files.ca, ")")
                       : " is not valid yet: this machine's clock is behind, or it is for later";
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return depth > 0 ? absl::StrCat(" is of an authority that has expired (", files.ca, ")")
                       : " has expired: make new ones (coordctl certs)";
    default:
      return absl::StrCat(" is not of the authority in ", files.ca,
                          ": expected files of one `coordctl certs` (",
                          X509_verify_cert_error_string(error), ")");
  }
}

}  // namespace

absl::Status CheckOwnCertificate(const TlsFiles& files, TlsSide side) {
  if (!files.enabled()) return absl::OkStatus();
  COORDD_RETURN_IF_ERROR(files.Validate());
  const auto refused = [&files](const std::string& why) {
    ERR_clear_error();
    return absl::InvalidArgumentError(absl::StrCat("TLS certificate ", files.cert, why));
  };
  const TlsOwned<X509_STORE> store(X509_STORE_new());
  const TlsOwned<BIO> in(BIO_new_file(files.cert.c_str(), "r"));
  if (store == nullptr || in == nullptr ||
      X509_STORE_load_file(store.get(), files.ca.c_str()) != 1) {
    return refused(absl::StrCat(" cannot be compared with the authority in ", files.ca));
  }
  const TlsOwned<X509> own(PEM_read_bio_X509(in.get(), nullptr, nullptr, nullptr));
  const TlsOwned<STACK_OF(X509)> chain(sk_X509_new_null());
  while (sk_X509_num(chain.get()) < kMaxChain) {
    X509* next = PEM_read_bio_X509(in.get(), nullptr, nullptr, nullptr);
    if (next == nullptr) break;
    sk_X509_push(chain.get(), next);
  }
  // As gRPC does: an intermediate authority may stand in `files.ca` alone.
  X509_STORE_set_flags(store.get(), X509_V_FLAG_PARTIAL_CHAIN | X509_V_FLAG_TRUSTED_FIRST);
  const TlsOwned<X509_STORE_CTX> context(X509_STORE_CTX_new());
  if (own == nullptr || context == nullptr ||
      X509_STORE_CTX_init(context.get(), store.get(), own.get(), chain.get()) != 1) {
    return refused(absl::StrCat(" cannot be compared with the authority in ", files.ca));
  }
  X509_STORE_CTX_set_purpose(
      context.get(), side == TlsSide::kServer ? X509_PURPOSE_SSL_SERVER : X509_PURPOSE_SSL_CLIENT);
  if (X509_verify_cert(context.get()) != 1) {
    return refused(WhyRefused(X509_STORE_CTX_get_error(context.get()),
                              X509_STORE_CTX_get_error_depth(context.get()), files, side));
  }
  if (side == TlsSide::kServer && !NamesSomebody(own.get())) {
    return refused(" names no host: expected one with the names that clients reach coordd by");
  }
  ERR_clear_error();
  return absl::OkStatus();
}

}  // namespace coordd
