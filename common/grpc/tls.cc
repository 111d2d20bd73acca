#include "common/grpc/tls.h"

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/named_file.h"
#include "common/base/private_file.h"
#include "common/base/status_macros.h"
#include "common/grpc/certificate_names.h"
#include "common/grpc/tls_handles.h"

namespace coordd {
namespace {

// A chain of certificates is some kilobytes; more is not a PEM file.
constexpr size_t kMaxPemBytes = 1 << 20;

absl::Status CheckKeyPermissions(const std::string& path) {
  struct stat file = {};
  // ReadPem says why, and what is there.
  if (stat(path.c_str(), &file) != 0 || !S_ISREG(file.st_mode)) return absl::OkStatus();
  if (!IsPrivate(file, FileReader::Self())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "TLS key ", path, " has mode 0", (file.st_mode >> 6) & 7, (file.st_mode >> 3) & 7,
        file.st_mode & 7, ", so others than its owner can reach it; expected 0600 (chmod 600 ",
        path, ")"));
  }
  return absl::OkStatus();
}

TlsOwned<X509> ParseCertificate(const std::string& pem) {
  const TlsOwned<BIO> bio = Reading(pem);
  TlsOwned<X509> result(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
  ERR_clear_error();
  return result;
}

// gRPC only says "handshake failed" for each of these.
absl::Status CheckPems(const TlsFiles& files, const std::string& cert, const std::string& key,
                       const std::string& ca) {
  const auto certificate = ParseCertificate(cert);
  if (certificate == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("TLS certificate ", files.cert, " holds no certificate in PEM form"));
  }
  if (X509_cmp_current_time(X509_get0_notAfter(certificate.get())) < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("TLS certificate ", files.cert, ExpiredText(certificate.get())));
  }
  if (ParseCertificate(ca) == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("TLS authority ", files.ca, " holds no certificate in PEM form"));
  }
  const TlsOwned<BIO> bio = Reading(key);
  // An encrypted key must not ask for its passphrase on the terminal.
  auto no_passphrase = [](char*, int, int, void*) { return -1; };
  const TlsOwned<EVP_PKEY> private_key(
      PEM_read_bio_PrivateKey(bio.get(), nullptr, no_passphrase, nullptr));
  ERR_clear_error();
  if (private_key == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("TLS key ", files.key, " holds no unencrypted private key in PEM form"));
  }
  const bool match = X509_check_private_key(certificate.get(), private_key.get()) == 1;
  ERR_clear_error();
  if (!match) {
    return absl::InvalidArgumentError(
        absl::StrCat("TLS key ", files.key, " does not belong to certificate ", files.cert));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> ReadPem(absl::string_view what, const std::string& path) {
  const auto refused = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("TLS ", what, " ", path, " ", why));
  };
  struct stat file = {};
  // Each is read several times, so that a pipe will not do.
  if (stat(path.c_str(), &file) == 0 && !S_ISREG(file.st_mode)) {
    return refused(absl::StrCat("is ", KindOfFile(file.st_mode), "; expected a PEM file"));
  }
  const absl::StatusOr<std::string> text = ReadNamedFile(path, kMaxPemBytes);
  if (!text.ok()) return refused(text.status().message());
  if (text->size() > kMaxPemBytes) return refused("is not a PEM file of at most 1 MiB");
  return text;
}

absl::StatusOr<TlsPems> ReadTls(const TlsFiles& files) {
  for (const auto& [path, option, what] :
       {std::tuple{&files.cert, "--tls-cert", "this side's certificate"},
        std::tuple{&files.key, "--tls-key", "its private key"},
        std::tuple{&files.ca, "--tls-ca", "the authority that signs the other side's"}}) {
    if (path->empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("TLS is set up in part: ", option, " (", what,
                       ") is missing; all of --tls-cert, --tls-key and --tls-ca are needed"));
    }
  }
  TlsPems pems;
  COORDD_ASSIGN_OR_RETURN(pems.cert, ReadPem("certificate", files.cert));
  COORDD_RETURN_IF_ERROR(CheckKeyPermissions(files.key));
  COORDD_ASSIGN_OR_RETURN(pems.key, ReadPem("key", files.key));
  COORDD_ASSIGN_OR_RETURN(pems.ca, ReadPem("authority", files.ca));
  COORDD_RETURN_IF_ERROR(CheckPems(files, pems.cert, pems.key, pems.ca));
  return pems;
}

absl::Status TlsFiles::Validate() const {
  if (!enabled()) return absl::OkStatus();
  return ReadTls(*this).status();
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> ServerCredentialsFrom(
    const TlsFiles& files) {
  if (!files.enabled()) return grpc::InsecureServerCredentials();
  COORDD_ASSIGN_OR_RETURN(TlsPems pems, ReadTls(files));
  grpc::SslServerCredentialsOptions options(
      GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = std::move(pems.ca);
  options.pem_key_cert_pairs.push_back({std::move(pems.key), std::move(pems.cert)});
  return grpc::SslServerCredentials(options);
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> ChannelCredentialsFrom(
    const TlsFiles& files) {
  if (!files.enabled()) return grpc::InsecureChannelCredentials();
  COORDD_ASSIGN_OR_RETURN(TlsPems pems, ReadTls(files));
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = std::move(pems.ca);
  options.pem_private_key = std::move(pems.key);
  options.pem_cert_chain = std::move(pems.cert);
  return grpc::SslCredentials(options);
}

}  // namespace coordd
