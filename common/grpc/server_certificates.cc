#include "common/grpc/server_certificates.h"

#include <openssl/asn1.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/stat.h>
#include <time.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "common/grpc/own_certificate.h"
#include "common/grpc/tls_handles.h"

namespace coordd {
namespace {

// When each certificate of `pem` ends.
std::vector<absl::Time> EndsIn(const std::string& pem) {
  std::vector<absl::Time> ends;
  const TlsOwned<BIO> bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  while (true) {
    const TlsOwned<X509> certificate(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
    if (certificate == nullptr) break;
    tm end = {};
    if (ASN1_TIME_to_tm(X509_get0_notAfter(certificate.get()), &end) == 1)
      ends.push_back(absl::FromTM(end, absl::UTCTimeZone()));
  }
  ERR_clear_error();
  return ends;
}

TlsOwned<X509> NextCertificate(BIO* from) {
  return TlsOwned<X509>(PEM_read_bio_X509(from, nullptr, nullptr, nullptr));
}

bool UseChain(SSL_CTX* context, const std::string& pem) {
  const TlsOwned<BIO> bio = Reading(pem);
  const TlsOwned<X509> own = NextCertificate(bio.get());
  if (own == nullptr || SSL_CTX_use_certificate(context, own.get()) != 1) return false;
  while (const TlsOwned<X509> next = NextCertificate(bio.get())) {
    if (SSL_CTX_add1_chain_cert(context, next.get()) != 1) return false;
  }
  return true;
}

bool UseKey(SSL_CTX* context, const std::string& pem) {
  auto no_passphrase = [](char*, int, int, void*) { return -1; };
  const TlsOwned<EVP_PKEY> key(
      PEM_read_bio_PrivateKey(Reading(pem).get(), nullptr, no_passphrase, nullptr));
  return key != nullptr && SSL_CTX_use_PrivateKey(context, key.get()) == 1 &&
         SSL_CTX_check_private_key(context) == 1;
}

// Also names the authorities to clients, which may have certificates of several.
bool TrustAll(SSL_CTX* context, const std::string& pem) {
  const TlsOwned<BIO> bio = Reading(pem);
  size_t authorities = 0;
  while (const TlsOwned<X509> next = NextCertificate(bio.get())) {
    if (X509_STORE_add_cert(SSL_CTX_get_cert_store(context), next.get()) != 1 ||
        SSL_CTX_add_client_CA(context, next.get()) != 1)
      return false;
    ++authorities;
  }
  return authorities > 0;
}

// What of a file of authorities would count for nobody, or end the reading before its end.
absl::Status CheckAuthorities(const std::string& pem, const std::string& file) {
  const TlsOwned<BIO> bio = Reading(pem);
  ERR_clear_error();
  int number = 0;
  while (const TlsOwned<X509> next = NextCertificate(bio.get())) {
    ++number;
    if (X509_check_ca(next.get()) == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("TLS authority file ", file, ": certificate ", number,
                       " is no authority's, expected ca.crt of `coordctl certs`, or several"));
    }
  }
  const bool is_at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  if (is_at_end) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("TLS authority file ", file, ": certificate ", number + 1, " cannot be read"));
}

constexpr char kHttp2[] = "h2", kHttp1[] = "http/1.1";

// `wanted`: one of these.
int SelectProtocol(SSL* /*ssl*/, const unsigned char** selected, unsigned char* size,
                   const unsigned char* offered, unsigned offered_size, void* wanted) {
  const absl::string_view protocol = static_cast<const char*>(wanted);
  for (unsigned at = 0; at < offered_size; at += offered[at] + 1u) {
    if (at + 1u + offered[at] > offered_size) break;
    const absl::string_view one(reinterpret_cast<const char*>(offered + at + 1), offered[at]);
    if (one != protocol) continue;
    *selected = offered + at + 1;
    *size = offered[at];
    return SSL_TLSEXT_ERR_OK;
  }
  return SSL_TLSEXT_ERR_ALERT_FATAL;
}

// Null: they do not fit together.
std::shared_ptr<SSL_CTX> ContextOf(const TlsPems& pems, const char* protocol) {
  std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_server_method()), TlsFreer());
  SSL_CTX* const made = context.get();
  const bool fits = made != nullptr && SSL_CTX_set_min_proto_version(made, TLS1_3_VERSION) == 1 &&
                    UseChain(made, pems.cert) && UseKey(made, pems.key) && TrustAll(made, pems.ca);
  ERR_clear_error();
  if (!fits) return nullptr;
  const bool is_http2 = protocol == absl::string_view(kHttp2);
  SSL_CTX_set_verify(made, SSL_VERIFY_PEER | (is_http2 ? SSL_VERIFY_FAIL_IF_NO_PEER_CERT : 0),
                     nullptr);
  SSL_CTX_set_max_cert_list(made, ServerCertificates::kMostChainBytes);
  SSL_CTX_set_verify_depth(made, ServerCertificates::kMostAuthorities);
  SSL_CTX_set_alpn_select_cb(made, &SelectProtocol, const_cast<char*>(protocol));
  // A session that is taken up again would be verified by what counted then.
  SSL_CTX_set_session_cache_mode(made, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(made, 0);
  SSL_CTX_set_read_ahead(made, 1);
  SSL_CTX_set_mode(made, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                             SSL_MODE_RELEASE_BUFFERS);
  // Records that carry nothing of the client's keep nobody in a read.
  SSL_CTX_clear_mode(made, SSL_MODE_AUTO_RETRY);
  return context;
}

}  // namespace

ServerCertificates::ServerCertificates(const TlsFiles& files) : files_(files) {}

absl::StatusOr<std::unique_ptr<ServerCertificates>> ServerCertificates::Load(
    const TlsFiles& files) {
  std::unique_ptr<ServerCertificates> loaded(new ServerCertificates(files));
  COORDD_RETURN_IF_ERROR(loaded->Reload().status());
  return loaded;
}

std::vector<ServerCertificates::Stamp> ServerCertificates::Stamps() const {
  std::vector<Stamp> stamps;
  for (const std::string* path : {&files_.cert, &files_.key, &files_.ca}) {
    struct stat found = {};
    Stamp& stamp = stamps.emplace_back();
    if (stat(path->c_str(), &found) != 0) continue;
    stamp = {.device = static_cast<int64_t>(found.st_dev),
             .file = static_cast<int64_t>(found.st_ino),
             .size = found.st_size,
             .changed_ns = absl::ToInt64Nanoseconds(absl::DurationFromTimespec(found.st_mtim))};
  }
  return stamps;
}

bool ServerCertificates::FilesChanged() const {
  if (IsFileGone()) return false;
  const std::vector<Stamp> now = Stamps();
  MutexLock lock(&mu_);
  return now != stamps_;
}

bool ServerCertificates::IsFileGone() const {
  const std::vector<Stamp> now = Stamps();
  return std::find(now.begin(), now.end(), Stamp()) != now.end();
}

absl::StatusOr<bool> ServerCertificates::Reload() {
  // Before they are read: what is written meanwhile is read again the next time.
  std::vector<Stamp> stamps = Stamps();
  COORDD_ASSIGN_OR_RETURN(TlsPems pems, ReadTls(files_));
  MutexLock lock(&mu_);
  stamps_ = std::move(stamps);
  if (pems == pems_) return false;
  COORDD_RETURN_IF_ERROR(CheckOwnPem(pems.cert, files_.cert, TlsSide::kServer));
  COORDD_RETURN_IF_ERROR(CheckAuthorities(pems.ca, files_.ca));
  std::shared_ptr<SSL_CTX> context = ContextOf(pems, kHttp2);
  std::shared_ptr<SSL_CTX> http_context = ContextOf(pems, kHttp1);
  if (context == nullptr || http_context == nullptr)
    return absl::InvalidArgumentError(absl::StrCat("OpenSSL does not take ", files_.cert, ", ",
                                                   files_.key, " and ", files_.ca, " together"));
  pems_ = std::move(pems);
  context_ = std::move(context);
  http_context_ = std::move(http_context);
  return true;
}

absl::Time ServerCertificates::end() const {
  TlsPems pems;
  {
    MutexLock lock(&mu_);
    pems = pems_;
  }
  const std::vector<absl::Time> own = EndsIn(pems.cert), authorities = EndsIn(pems.ca);
  absl::Time end = absl::InfiniteFuture();
  if (!authorities.empty()) end = *std::max_element(authorities.begin(), authorities.end());
  for (const absl::Time one : own) end = std::min(end, one);
  return end;
}

std::shared_ptr<SSL_CTX> ServerCertificates::http_context() const {
  MutexLock lock(&mu_);
  return http_context_;
}

std::shared_ptr<SSL_CTX> ServerCertificates::context() const {
  MutexLock lock(&mu_);
  return context_;
}

}  // namespace coordd
