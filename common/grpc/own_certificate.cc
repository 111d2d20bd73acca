#include "common/grpc/own_certificate.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/grpc/certificate_names.h"
#include "common/grpc/tls_handles.h"

namespace coordd {
namespace {

constexpr size_t kMostAuthorities = 4;  // in a sentence

bool NamesSomebody(X509* certificate) {
  GENERAL_NAMES* names = static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr));
  const bool has_names = names != nullptr;
  GENERAL_NAMES_free(names);
  return has_names ||
         X509_NAME_get_index_by_NID(X509_get_subject_name(certificate), NID_commonName, -1) >= 0;
}

// What OpenSSL says that takes no certificate whose key or signature is worth little; empty: it
// takes this one.
std::string WhyTooWeak(X509* certificate) {
  const TlsOwned<SSL_CTX> context(SSL_CTX_new(TLS_method()));
  if (context == nullptr || SSL_CTX_use_certificate(context.get(), certificate) == 1) return "";
  const char* said = ERR_reason_error_string(ERR_peek_last_error());
  return said == nullptr ? "OpenSSL refuses it" : said;
}

// Empty: nothing is wrong.
std::string WhatIsWrong(X509* certificate, TlsSide side) {
  const bool serves = side == TlsSide::kServer;
  const int purpose = serves ? X509_PURPOSE_SSL_SERVER : X509_PURPOSE_SSL_CLIENT;
  if (X509_check_purpose(certificate, purpose, /*ca=*/0) != 1) {
    return absl::StrCat(" is not for ", serves ? "servers" : "clients", ": expected one with ",
                        serves ? "serverAuth" : "clientAuth", " (", serves ? "server" : "worker",
                        ".crt of `coordctl certs`)");
  }
  if (!serves && (X509_get_extension_flags(certificate) & EXFLAG_CA) != 0) {
    return ": it is an authority's, which signs others' and is nobody's own: expected worker.crt "
           "of `coordctl certs`, or the like";
  }
  if (const std::string weak = WhyTooWeak(certificate); !weak.empty()) {
    return absl::StrCat(
        " cannot be used (", weak,
        "): expected a key of 2048 bits of RSA, or of 256 of ECDSA, and a signature "
        "by SHA-256, or more (coordctl certs)");
  }
  if (X509_cmp_current_time(X509_get0_notBefore(certificate)) > 0)
    return " is not valid yet: this machine's clock is behind, or it is for later";
  if (X509_cmp_current_time(X509_get0_notAfter(certificate)) < 0) return ExpiredText(certificate);
  if (serves && !NamesSomebody(certificate))
    return " names no host: expected one with the names that clients reach coordd by";
  return "";
}

// "CN=coordd authority, O=lab".
std::string NameText(const X509_NAME* name) {
  const TlsOwned<BIO> out(BIO_new(BIO_s_mem()));
  if (out == nullptr || X509_NAME_print_ex(out.get(), name, 0, XN_FLAG_RFC2253) < 0) return "";
  char* text = nullptr;
  const long size = BIO_get_mem_data(out.get(), &text);
  return std::string(text, static_cast<size_t>(size));
}

}  // namespace

absl::Status CheckOwnCertificate(const TlsFiles& files, TlsSide side) {
  if (!files.enabled()) return absl::OkStatus();
  COORDD_RETURN_IF_ERROR(files.Validate());
  COORDD_ASSIGN_OR_RETURN(const TlsPems pems, ReadTls(files));
  return CheckOwnPem(pems.cert, files.cert, side);
}

absl::StatusOr<CertificateFacts> ReadCertificateFacts(const std::string& file) {
  COORDD_ASSIGN_OR_RETURN(const std::string pem, ReadPem("certificate", file));
  const TlsOwned<BIO> in = Reading(pem);
  const TlsOwned<X509> read(PEM_read_bio_X509(in.get(), nullptr, nullptr, nullptr));
  ERR_clear_error();
  tm begin = {}, end = {};
  if (read == nullptr || ASN1_TIME_to_tm(X509_get0_notBefore(read.get()), &begin) != 1 ||
      ASN1_TIME_to_tm(X509_get0_notAfter(read.get()), &end) != 1)
    return absl::InvalidArgumentError(absl::StrCat("TLS certificate ", file, " cannot be read"));
  CertificateFacts facts;
  facts.who = absl::StrJoin(UrisOf(read.get()), ", ");
  if (facts.who.empty()) facts.who = NameText(X509_get_subject_name(read.get()));
  facts.authority = NameText(X509_get_issuer_name(read.get()));
  facts.begin = absl::FromTM(begin, absl::UTCTimeZone());
  facts.end = absl::FromTM(end, absl::UTCTimeZone());
  return facts;
}

std::string AuthoritiesIn(const std::string& file) {
  std::vector<std::string> names;
  const std::string pem = ReadPem("authority", file).value_or("");
  const TlsOwned<BIO> in = Reading(pem);
  for (size_t i = 0; i < kMostAuthorities; ++i) {
    const TlsOwned<X509> one(PEM_read_bio_X509(in.get(), nullptr, nullptr, nullptr));
    if (one == nullptr) break;
    names.push_back(NameText(X509_get_subject_name(one.get())));
  }
  ERR_clear_error();
  return absl::StrJoin(names, " and ");
}

absl::Status CheckOwnPem(const std::string& pem, const std::string& file, TlsSide side) {
  const TlsOwned<BIO> in = Reading(pem);
  const TlsOwned<X509> own(PEM_read_bio_X509(in.get(), nullptr, nullptr, nullptr));
  const std::string wrong = own == nullptr ? " cannot be read" : WhatIsWrong(own.get(), side);
  ERR_clear_error();
  if (wrong.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("TLS certificate ", file, wrong));
}

}  // namespace coordd
