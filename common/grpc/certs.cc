#include "common/grpc/certs.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/named_file.h"
#include "common/base/owned_fd.h"
#include "common/base/status_macros.h"
#include "common/grpc/certificate_names.h"
#include "common/grpc/tls_handles.h"

namespace coordd {
namespace {

// Clocks of a cluster differ: a certificate is valid from a little before it was made.
constexpr long kBackdateSeconds = 600;
constexpr int kSerialBits = 128;

struct Signed {
  TlsOwned<EVP_PKEY> key;
  TlsOwned<X509> certificate;
};

// What a certificate says beyond its name and key.
struct Extensions {
  std::string basic_constraints, key_usage, extended_key_usage, alternative_names;
};

absl::Status TlsLibraryError(absl::string_view what) {
  char text[256] = "";
  ERR_error_string_n(ERR_get_error(), text, sizeof(text));
  ERR_clear_error();
  return absl::InternalError(absl::StrCat("the TLS library cannot ", what, ": ", text));
}

absl::Status AddExtension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  if (value.empty()) return absl::OkStatus();
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const TlsOwned<X509_EXTENSION> extension(
      X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str()));
  if (extension == nullptr || X509_add_ext(certificate, extension.get(), -1) != 1)
    return TlsLibraryError(absl::StrCat("write \"", value, "\" into a certificate"));
  return absl::OkStatus();
}

absl::Status SetSerial(X509* certificate) {
  const TlsOwned<BIGNUM> serial(BN_new());
  if (BN_rand(serial.get(), kSerialBits - 1, BN_RAND_TOP_ANY, BN_RAND_BOTTOM_ANY) != 1 ||
      BN_to_ASN1_INTEGER(serial.get(), X509_get_serialNumber(certificate)) == nullptr) {
    return TlsLibraryError("make a serial number");
  }
  return absl::OkStatus();
}

// `issuer` nullptr: signed by itself, and its key's mark behind `name`.
absl::StatusOr<Signed> Sign(const std::string& name, const Extensions& extensions,
                            absl::Duration lifetime, const Signed* issuer) {
  Signed made{TlsOwned<EVP_PKEY>(EVP_EC_gen("P-256")), TlsOwned<X509>(X509_new())};
  if (made.key == nullptr || made.certificate == nullptr) return TlsLibraryError("make a key");
  X509* certificate = made.certificate.get();
  X509* issuer_certificate = issuer == nullptr ? certificate : issuer->certificate.get();
  X509_set_version(certificate, X509_VERSION_3);
  COORDD_RETURN_IF_ERROR(SetSerial(certificate));
  X509_gmtime_adj(X509_getm_notBefore(certificate), -kBackdateSeconds);
  X509_time_adj_ex(X509_getm_notAfter(certificate), static_cast<int>(lifetime / absl::Hours(24)),
                   absl::ToInt64Seconds(lifetime % absl::Hours(24)), nullptr);
  // Nothing outlives the authority that it needs.
  if (issuer != nullptr) {
    const ASN1_TIME* const last = X509_get0_notAfter(issuer->certificate.get());
    if (ASN1_TIME_compare(last, X509_get0_notAfter(certificate)) < 0)
      X509_set1_notAfter(certificate, last);
  }
  X509_set_pubkey(certificate, made.key.get());
  // Two authorities differ in name, too, so that whoever has files of both sees it.
  const std::string whole =
      issuer == nullptr ? absl::StrCat(name, " ", KeyMark(certificate)) : name;
  X509_NAME* subject = X509_get_subject_name(certificate);
  const auto* bytes = reinterpret_cast<const unsigned char*>(whole.c_str());
  X509_NAME_add_entry_by_txt(subject, "O", MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>("coordd"), -1, -1, 0);
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8, bytes, -1, -1, 0);
  X509_set_issuer_name(certificate, X509_get_subject_name(issuer_certificate));
  for (const auto& [nid, value] : {std::pair{NID_basic_constraints, extensions.basic_constraints},
                                   std::pair{NID_key_usage, extensions.key_usage},
                                   std::pair{NID_ext_key_usage, extensions.extended_key_usage},
                                   std::pair{NID_subject_alt_name, extensions.alternative_names},
                                   std::pair{NID_subject_key_identifier, std::string("hash")},
                                   std::pair{NID_authority_key_identifier, std::string("keyid")}}) {
    COORDD_RETURN_IF_ERROR(AddExtension(certificate, issuer_certificate, nid, value));
  }
  EVP_PKEY* signing_key = issuer == nullptr ? made.key.get() : issuer->key.get();
  if (X509_sign(certificate, signing_key, EVP_sha256()) == 0)
    return TlsLibraryError("sign a certificate");
  return made;
}

absl::StatusOr<std::string> AlternativeNames(const std::vector<std::string>& names) {
  std::vector<std::string> entries = {"DNS:localhost", "IP:127.0.0.1", "IP:::1"};
  const auto add = [&entries](std::string entry) {
    if (std::find(entries.begin(), entries.end(), entry) == entries.end())
      entries.push_back(std::move(entry));
  };
  for (const std::string& name : names) {
    unsigned char address[sizeof(in6_addr)];
    if (inet_pton(AF_INET, name.c_str(), address) == 1 ||
        inet_pton(AF_INET6, name.c_str(), address) == 1) {
      add(absl::StrCat("IP:", name));
      continue;
    }
    bool good = !name.empty() && name.size() <= 253;
    for (char c : name) good = good && (absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '*');
    if (!good) {
      return absl::InvalidArgumentError(
          absl::StrCat("server name \"", name, "\" is neither a DNS name nor an IP address"));
    }
    add(absl::StrCat("DNS:", name));
  }
  return absl::StrJoin(entries, ",");
}

absl::Status WriteNewFile(const std::string& path, mode_t mode, BIO* contents) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(contents, &data);
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
  if (fd < 0) {
    const std::string why = absl::StrCat(path, " cannot be written: ", std::strerror(errno));
    return errno == EEXIST ? absl::AlreadyExistsError(why) : absl::UnavailableError(why);
  }
  const bool written = write(fd, data, static_cast<size_t>(size)) == size;
  const int error = errno;
  if (close(fd) != 0 || !written) {
    return absl::UnavailableError(absl::StrCat(path, " cannot be written: ", std::strerror(error)));
  }
  return absl::OkStatus();
}

// As who has what it replaces has it: a daemon's group may read its key.
absl::Status TakeOverOwner(const std::string& from, const std::string& to) {
  struct stat old = {};
  if (stat(from.c_str(), &old) != 0) return absl::OkStatus();
  if (chown(to.c_str(), old.st_uid, old.st_gid) == 0 && chmod(to.c_str(), old.st_mode & 07777) == 0)
    return absl::OkStatus();
  const int error = errno;
  return absl::UnavailableError(absl::StrCat(to, " cannot be given the owner and the mode of ",
                                             from, ": ", std::strerror(error)));
}

// Both in the place of what is called so. They are written beside it first, so that nobody finds
// one that is half written, and whatever fails before leaves the old pair.
absl::Status ReplacePair(const std::string& stem, BIO* key, BIO* certificate) {
  const std::string paths[] = {stem + ".key", stem + ".crt"};
  BIO* const contents[] = {key, certificate};
  const mode_t modes[] = {0600, 0644};
  absl::Status status;
  for (const std::string& path : paths) status.Update(ExpectFileOrNothing(path));
  for (int i = 0; i < 2 && status.ok(); ++i) {
    const std::string beside = paths[i] + ".new";
    unlink(beside.c_str());  // of one that was interrupted
    status = WriteNewFile(beside, modes[i], contents[i]);
    if (status.ok()) status = TakeOverOwner(paths[i], beside);
  }
  for (int i = 0; i < 2 && status.ok(); ++i) {
    if (rename((paths[i] + ".new").c_str(), paths[i].c_str()) != 0)
      status = absl::UnavailableError(
          absl::StrCat(paths[i], " cannot be replaced: ", std::strerror(errno)));
  }
  for (const std::string& path : paths) unlink((path + ".new").c_str());
  return status;
}

absl::Status WritePair(const std::string& stem, const Signed& identity, bool replaces = false) {
  const TlsOwned<BIO> key(BIO_new(BIO_s_mem()));
  const TlsOwned<BIO> certificate(BIO_new(BIO_s_mem()));
  if (PEM_write_bio_PrivateKey(key.get(), identity.key.get(), nullptr, nullptr, 0, nullptr,
                               nullptr) != 1 ||
      PEM_write_bio_X509(certificate.get(), identity.certificate.get()) != 1) {
    return TlsLibraryError("write PEM");
  }
  if (replaces) return ReplacePair(stem, key.get(), certificate.get());
  COORDD_RETURN_IF_ERROR(WriteNewFile(stem + ".key", 0600, key.get()));
  return WriteNewFile(stem + ".crt", 0644, certificate.get());
}

// While it is there nobody else writes certificates of this directory.
class DirectoryLock {
 public:
  explicit DirectoryLock(const std::string& directory)
      : directory_(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    if (directory_.valid()) flock(directory_.get(), LOCK_EX);
  }

 private:
  OwnedFd directory_;
};

absl::StatusOr<Signed> SignClient(const Identity& client, absl::Duration lifetime,
                                  const Signed& ca) {
  COORDD_RETURN_IF_ERROR(MakeIdentity(client.role, client.name).status());
  const std::string name = client.name == kAnyName
                               ? absl::StrCat("coordd ", Name(client.role))
                               : absl::StrCat("coordd ", Name(client.role), " ", client.name);
  // X.520 has common names of 64 characters.
  return Sign(
      name.substr(0, 64),
      {.basic_constraints = "critical,CA:FALSE",
       .key_usage = "critical,digitalSignature",
       .extended_key_usage = "clientAuth",
       .alternative_names = absl::StrCat("DNS:", Name(client.role), ".coordd,URI:", ToUri(client))},
      lifetime, &ca);
}

absl::Status CheckLifetime(absl::Duration lifetime) {
  if (lifetime >= absl::Seconds(1)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "certificate lifetime is ", absl::FormatDuration(lifetime), "; expected over 1s"));
}

absl::Status NothingThere(const std::string& directory, const std::vector<std::string>& stems) {
  for (const std::string& stem : stems) {
    for (const char* ending : {".crt", ".key"}) {
      const std::string path = absl::StrCat(directory, "/", stem, ending);
      if (access(path.c_str(), F_OK) != 0) continue;
      return absl::AlreadyExistsError(absl::StrCat(path,
                                                   " exists already; nothing was written: expected "
                                                   "another directory, or --role and --renew, "
                                                   "which replace the certificate of one role"));
    }
  }
  return absl::OkStatus();
}

// Makes it, and what it is in, where it is not there. Whoever may write in it could put another
// authority into it.
absl::Status OpenDirectory(const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(directory).parent_path(), error);
  if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    return absl::UnavailableError(
        absl::StrCat("directory ", directory, " cannot be made: ", std::strerror(errno)));
  }
  struct stat found = {};
  if (stat(directory.c_str(), &found) != 0 || (found.st_mode & S_IWOTH) == 0)
    return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("directory ", directory,
                   " can be written to by everybody, expected by its owner alone: chmod "
                   "700 ",
                   directory));
}

absl::StatusOr<Signed> SignServer(const std::vector<std::string>& names, absl::Duration lifetime,
                                  const Signed& ca) {
  COORDD_ASSIGN_OR_RETURN(const std::string alternative_names, AlternativeNames(names));
  return Sign("coordd",
              {.basic_constraints = "critical,CA:FALSE",
               .key_usage = "critical,digitalSignature",
               .extended_key_usage = "serverAuth",
               .alternative_names = alternative_names},
              lifetime, &ca);
}

absl::StatusOr<Signed> LoadAuthority(const std::string& directory) {
  const TlsFiles files = {directory + "/ca.crt", directory + "/ca.key", directory + "/ca.crt"};
  if (access(files.key.c_str(), F_OK) != 0) {
    return absl::NotFoundError(
        absl::StrCat("there is no ", files.key,
                     ", which signs more certificates: expected the "
                     "directory of a `coordctl certs`, from which ca.key was not removed"));
  }
  COORDD_ASSIGN_OR_RETURN(const TlsPems pems, ReadTls(files));
  const TlsOwned<BIO> certificate = Reading(pems.cert);
  const TlsOwned<BIO> key = Reading(pems.key);
  if (certificate == nullptr || key == nullptr) return TlsLibraryError("read the authority");
  Signed ca{TlsOwned<EVP_PKEY>(PEM_read_bio_PrivateKey(key.get(), nullptr, nullptr, nullptr)),
            TlsOwned<X509>(PEM_read_bio_X509(certificate.get(), nullptr, nullptr, nullptr))};
  if (ca.key == nullptr || ca.certificate == nullptr) return TlsLibraryError("read the authority");
  return ca;
}

}  // namespace

absl::Status MakeCertificates(const std::string& directory, const CertOptions& options) {
  COORDD_RETURN_IF_ERROR(CheckLifetime(options.lifetime));
  COORDD_RETURN_IF_ERROR(AlternativeNames(options.server_names).status());
  COORDD_RETURN_IF_ERROR(OpenDirectory(directory));
  std::vector<std::string> stems = {"ca", "server"};
  for (const Identity& client : options.clients) stems.emplace_back(Name(client.role));
  COORDD_RETURN_IF_ERROR(NothingThere(directory, stems));
  COORDD_ASSIGN_OR_RETURN(const Signed ca,
                          Sign("coordd authority",
                               {.basic_constraints = "critical,CA:TRUE,pathlen:0",
                                .key_usage = "critical,keyCertSign,cRLSign",
                                .extended_key_usage = "",
                                .alternative_names = ""},
                               std::max(options.lifetime, options.authority_lifetime), nullptr));
  COORDD_ASSIGN_OR_RETURN(const Signed server,
                          SignServer(options.server_names, options.lifetime, ca));
  std::vector<Signed> clients;
  for (const Identity& client : options.clients) {
    COORDD_ASSIGN_OR_RETURN(Signed made, SignClient(client, options.lifetime, ca));
    clients.push_back(std::move(made));
  }
  COORDD_RETURN_IF_ERROR(WritePair(directory + "/ca", ca));
  COORDD_RETURN_IF_ERROR(WritePair(directory + "/server", server));
  for (size_t i = 0; i < clients.size(); ++i)
    COORDD_RETURN_IF_ERROR(WritePair(absl::StrCat(directory, "/", stems[i + 2]), clients[i]));
  return absl::OkStatus();
}

namespace {

// A name that is written wrongly is no new one.
absl::Status ThereToBeRenewed(const std::string& directory, const std::string& stem) {
  const std::string cert = absl::StrCat(directory, "/", stem, ".crt");
  if (access(cert.c_str(), F_OK) == 0) return absl::OkStatus();
  std::vector<std::string> there;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(directory, none)) {
    const std::string name = entry.path().filename().string();
    if (absl::EndsWith(name, ".crt") && name != "ca.crt") there.push_back(name);
  }
  std::sort(there.begin(), there.end());
  return absl::NotFoundError(absl::StrCat(cert, " is not there to be renewed; there is ",
                                          there.empty() ? "none" : absl::StrJoin(there, ", "),
                                          "; without --renew it is made"));
}

}  // namespace

absl::Status AddCertificate(const std::string& directory, const std::string& stem,
                            const Identity& client, const AddOptions& options) {
  COORDD_RETURN_IF_ERROR(CheckLifetime(options.lifetime));
  const DirectoryLock lock(directory);
  COORDD_RETURN_IF_ERROR(options.renew ? ThereToBeRenewed(directory, stem)
                                       : NothingThere(directory, {stem}));
  COORDD_ASSIGN_OR_RETURN(const Signed ca, LoadAuthority(directory));
  COORDD_ASSIGN_OR_RETURN(const Signed made, SignClient(client, options.lifetime, ca));
  return WritePair(absl::StrCat(directory, "/", stem), made, options.renew);
}

absl::StatusOr<std::vector<std::string>> ServerNamesIn(const std::string& directory) {
  const std::string path = ServerTlsFiles(directory).cert;
  std::vector<std::string> found;
  if (access(path.c_str(), F_OK) != 0) return found;
  const TlsOwned<BIO> file(BIO_new_file(path.c_str(), "r"));
  const TlsOwned<X509> certificate(
      file == nullptr ? nullptr : PEM_read_bio_X509(file.get(), nullptr, nullptr, nullptr));
  if (certificate == nullptr) return TlsLibraryError(absl::StrCat("read ", path));
  const TlsOwned<GENERAL_NAMES> names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate.get(), NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_DNS && name->type != GEN_IPADD) continue;
    const ASN1_STRING* text = name->type == GEN_DNS ? name->d.dNSName : name->d.iPAddress;
    const unsigned char* bytes = ASN1_STRING_get0_data(text);
    const auto size = static_cast<size_t>(ASN1_STRING_length(text));
    if (name->type == GEN_DNS) {
      found.emplace_back(reinterpret_cast<const char*>(bytes), size);
      continue;
    }
    char address[INET6_ADDRSTRLEN] = "";
    if (size == sizeof(in_addr) || size == sizeof(in6_addr))
      inet_ntop(size == sizeof(in_addr) ? AF_INET : AF_INET6, bytes, address, sizeof(address));
    if (address[0] != 0) found.emplace_back(address);
  }
  return found;
}

absl::Status AddServerCertificate(const std::string& directory, std::vector<std::string> names,
                                  const AddOptions& options) {
  COORDD_RETURN_IF_ERROR(CheckLifetime(options.lifetime));
  const DirectoryLock lock(directory);
  if (!options.renew) COORDD_RETURN_IF_ERROR(NothingThere(directory, {"server"}));
  COORDD_ASSIGN_OR_RETURN(const Signed ca, LoadAuthority(directory));
  const TlsFiles files = ServerTlsFiles(directory);
  if (names.empty() && options.renew && access(files.cert.c_str(), F_OK) != 0) {
    return absl::NotFoundError(absl::StrCat(
        files.cert, " is not there to be renewed, expected it, or the names of coordd's hosts"));
  }
  if (names.empty()) {
    COORDD_ASSIGN_OR_RETURN(names, ServerNamesIn(directory));
  }
  COORDD_ASSIGN_OR_RETURN(const Signed made, SignServer(names, options.lifetime, ca));
  return WritePair(directory + "/server", made, options.renew);
}

TlsFiles ServerTlsFiles(const std::string& directory) {
  return {directory + "/server.crt", directory + "/server.key", directory + "/ca.crt"};
}

TlsFiles WorkerTlsFiles(const std::string& directory) {
  return RoleTlsFiles(directory, Role::kWorker);
}

TlsFiles RoleTlsFiles(const std::string& directory, Role role) {
  const std::string stem = absl::StrCat(directory, "/", Name(role));
  return {stem + ".crt", stem + ".key", directory + "/ca.crt"};
}

TlsFiles OperatorTlsFiles(const std::string& directory) {
  for (const Role role : {Role::kOperator, Role::kWorker}) {
    TlsFiles files = RoleTlsFiles(directory, role);
    if (files.Validate().ok()) return files;
  }
  return {};
}

}  // namespace coordd
