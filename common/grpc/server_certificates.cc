#include "common/grpc/server_certificates.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpcpp/security/server_credentials.h>
#include <openssl/asn1.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <sys/stat.h>
#include <time.h>

#include <algorithm>
#include <string>
#include <utility>

#include "common/base/status_macros.h"
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

}  // namespace

// gRPC's own can be given a function that is asked at each handshake in its C interface only.
class ServerCertificates::Credentials final : public grpc::ServerCredentials {
 public:
  Credentials(grpc_ssl_server_certificate_config_callback fetch, Fetcher* fetcher)
      : credentials_(grpc_ssl_server_credentials_create_with_options(
            grpc_ssl_server_credentials_create_options_using_config_fetcher(
                GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY, fetch, fetcher))) {}
  ~Credentials() override { grpc_server_credentials_release(credentials_); }

  void SetAuthMetadataProcessor(
      const std::shared_ptr<grpc::AuthMetadataProcessor>& /*processor*/) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  grpc_server_credentials* const credentials_;
};

struct ServerCertificates::Fetcher {
  ServerCertificates* const source;
  int64_t seen = 0;  // guarded by source->mu_

  static grpc_ssl_certificate_config_reload_status Fetch(
      void* self, grpc_ssl_server_certificate_config** config) {
    auto* const fetcher = static_cast<Fetcher*>(self);
    ServerCertificates& source = *fetcher->source;
    MutexLock lock(&source.mu_);
    if (fetcher->seen == source.version_) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    const grpc_ssl_pem_key_cert_pair pair = {source.pems_.key.c_str(), source.pems_.cert.c_str()};
    *config = grpc_ssl_server_certificate_config_create(source.pems_.ca.c_str(), &pair, 1);
    fetcher->seen = source.version_;
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }
};

ServerCertificates::ServerCertificates(const TlsFiles& files) : files_(files) {}
ServerCertificates::~ServerCertificates() = default;

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
  const std::vector<Stamp> now = Stamps();
  if (std::find(now.begin(), now.end(), Stamp()) != now.end()) return false;
  MutexLock lock(&mu_);
  return now != stamps_;
}

absl::StatusOr<bool> ServerCertificates::Reload() {
  // Before they are read: what is written meanwhile is read again the next time.
  std::vector<Stamp> stamps = Stamps();
  COORDD_ASSIGN_OR_RETURN(TlsPems pems, ReadTls(files_));
  MutexLock lock(&mu_);
  stamps_ = std::move(stamps);
  if (pems == pems_) return false;
  pems_ = std::move(pems);
  ++version_;
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

std::shared_ptr<grpc::ServerCredentials> ServerCertificates::NewCredentials() {
  MutexLock lock(&mu_);
  fetchers_.push_back(std::make_unique<Fetcher>(Fetcher{this}));
  return std::make_shared<Credentials>(&Fetcher::Fetch, fetchers_.back().get());
}

}  // namespace coordd
