#include "common/grpc/certs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "common/grpc/certificate_names.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_directory.h"

namespace coordd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;

Certificate Load(const std::string& path) {
  FILE* file = fopen(path.c_str(), "re");
  Certificate result(file == nullptr ? nullptr : PEM_read_X509(file, nullptr, nullptr, nullptr),
                     &X509_free);
  if (file != nullptr) fclose(file);
  return result;
}

// Whether `leaf` is good for `purpose` (X509_PURPOSE_SSL_SERVER, ..._CLIENT) under `ca`.
bool Verifies(X509* leaf, X509* ca, int purpose) {
  X509_STORE* store = X509_STORE_new();
  X509_STORE_add_cert(store, ca);
  X509_STORE_CTX* context = X509_STORE_CTX_new();
  X509_STORE_CTX_init(context, store, leaf, nullptr);
  X509_STORE_CTX_set_purpose(context, purpose);
  const bool good = X509_verify_cert(context) == 1;
  X509_STORE_CTX_free(context);
  X509_STORE_free(store);
  return good;
}

std::vector<std::string> UrisOf(X509* certificate) {
  std::vector<std::string> uris;
  auto* names = static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr));
  for (int i = 0; i < sk_GENERAL_NAME_num(names); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names, i);
    if (name->type != GEN_URI) continue;
    const ASN1_IA5STRING* uri = name->d.uniformResourceIdentifier;
    uris.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(uri)),
                      static_cast<size_t>(ASN1_STRING_length(uri)));
  }
  GENERAL_NAMES_free(names);
  return uris;
}

int NamesIn(X509* certificate) {
  auto* names = static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr));
  const int count = sk_GENERAL_NAME_num(names);
  GENERAL_NAMES_free(names);
  return count;
}

mode_t ModeOf(const std::string& path) {
  struct stat found = {};
  return stat(path.c_str(), &found) == 0 ? found.st_mode & 0777 : 0;
}

TEST(MakeCertificates, GivesEachSideWhatItMayDo) {
  const TempDirectory directory;
  ASSERT_TRUE(MakeCertificates(directory.path(), {}).ok());
  const Certificate ca = Load(directory / "ca.crt");
  const Certificate server = Load(directory / "server.crt");
  const Certificate worker = Load(directory / "worker.crt");
  ASSERT_TRUE(ca && server && worker);
  EXPECT_TRUE(Verifies(server.get(), ca.get(), X509_PURPOSE_SSL_SERVER));
  EXPECT_FALSE(Verifies(server.get(), ca.get(), X509_PURPOSE_SSL_CLIENT));
  EXPECT_TRUE(Verifies(worker.get(), ca.get(), X509_PURPOSE_SSL_CLIENT));
  EXPECT_FALSE(Verifies(worker.get(), ca.get(), X509_PURPOSE_SSL_SERVER));
}

TEST(MakeCertificates, NamesTheAuthorityAfterItsKey) {
  const TempDirectory directory;
  ASSERT_TRUE(MakeCertificates(directory.path(), {}).ok());
  const Certificate ca = Load(directory / "ca.crt");
  const Certificate worker = Load(directory / "worker.crt");
  char name[100] = "";
  X509_NAME_get_text_by_NID(X509_get_subject_name(ca.get()), NID_commonName, name, sizeof(name));
  EXPECT_EQ(name, "coordd authority " + KeyMark(ca.get()));
  EXPECT_THAT(KeyMark(ca.get()), testing::MatchesRegex("[0-9a-f]{8}"));
  EXPECT_EQ(SignersMark(worker.get()), KeyMark(ca.get()));
  EXPECT_NE(KeyMark(worker.get()), KeyMark(ca.get()));
}

TEST(MakeCertificates, SaysInEachClientsWhoItIs) {
  const TempDirectory directory;
  CertOptions options;
  options.clients = {{Role::kWorker, "train7"}, {Role::kLauncher, "alice"}};
  ASSERT_TRUE(MakeCertificates(directory.path(), options).ok());
  EXPECT_THAT(UrisOf(Load(directory / "worker.crt").get()), ElementsAre("coordd://worker/train7"));
  EXPECT_THAT(UrisOf(Load(directory / "launcher.crt").get()),
              ElementsAre("coordd://launcher/alice"));
  EXPECT_THAT(UrisOf(Load(directory / "server.crt").get()), testing::IsEmpty());
  EXPECT_EQ(access((directory / "operator.crt").c_str(), F_OK), -1);
}

TEST(MakeCertificates, MakesWorkersOfAnyJobAndAnOperatorUnlessToldOtherwise) {
  const TempDirectory directory;
  ASSERT_TRUE(MakeCertificates(directory.path(), {}).ok());
  EXPECT_THAT(UrisOf(Load(directory / "worker.crt").get()), ElementsAre("coordd://worker/*"));
  EXPECT_THAT(UrisOf(Load(directory / "operator.crt").get()),
              ElementsAre("coordd://operator/owner"));
  EXPECT_EQ(OperatorTlsFiles(directory.path()).cert, directory / "operator.crt");
}

TEST(AddCertificate, IsOfTheSameAuthority) {
  const TempDirectory directory;
  ASSERT_TRUE(MakeCertificates(directory.path(), {}).ok());
  ASSERT_TRUE(
      AddCertificate(directory.path(), "viewer-grafana", {Role::kViewer, "grafana"}, {}).ok());
  const Certificate made = Load(directory / "viewer-grafana.crt");
  EXPECT_THAT(UrisOf(made.get()), ElementsAre("coordd://viewer/grafana"));
  EXPECT_TRUE(Verifies(made.get(), Load(directory / "ca.crt").get(), X509_PURPOSE_SSL_CLIENT));
  EXPECT_FALSE(Verifies(made.get(), Load(directory / "ca.crt").get(), X509_PURPOSE_SSL_SERVER));
  EXPECT_EQ(ModeOf(directory / "viewer-grafana.key"), 0600u);
}

TEST(AddCertificate, OverwritesNothingAndNeedsTheAuthoritysKey) {
  const TempDirectory directory;
  ASSERT_TRUE(MakeCertificates(directory.path(), {}).ok());
  const Identity worker{Role::kWorker, kAnyName};
  EXPECT_EQ(AddCertificate(directory.path(), "worker", worker, {.lifetime = absl::Hours(1)}).code(),
            absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(
      AddCertificate(directory.path(), "w", {Role::kWorker, "a,b"}, {.lifetime = absl::Hours(1)})
          .code(),
      absl::StatusCode::kInvalidArgument);
  ASSERT_EQ(unlink((directory / "ca.key").c_str()), 0);
  const absl::Status status =
      AddCertificate(directory.path(), "w", worker, {.lifetime = absl::Hours(1)});
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("ca.key"));
}

TEST(AddCertificate, ANameThatIsNotThereIsNotRenewed) {
  const TempDirectory directory;
  ASSERT_TRUE(MakeCertificates(directory.path(), {}).ok());
  const absl::Status status = AddCertificate(directory.path(), "launcher-alcie",
                                             {Role::kLauncher, "alcie"}, {.renew = true});
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("launcher-alcie.crt is not there to be renewed; there is operator.crt, "
                        "server.crt, worker.crt; without --renew it is made"));
  EXPECT_FALSE(std::filesystem::exists(directory / "launcher-alcie.crt"));
}

TEST(AddCertificate, RenewsWhatIsThereIfItIsTo) {
  const TempDirectory directory;
  ASSERT_TRUE(MakeCertificates(directory.path(), {}).ok());
  const Certificate before = Load(directory / "operator.crt");
  const Identity alice{Role::kOperator, "alice"};
  ASSERT_TRUE(AddCertificate(directory.path(), "operator", alice, {.renew = true}).ok());
  const Certificate after = Load(directory / "operator.crt");
  EXPECT_NE(X509_cmp(before.get(), after.get()), 0);
  EXPECT_THAT(UrisOf(after.get()), ElementsAre("coordd://operator/alice"));
  EXPECT_TRUE(RoleTlsFiles(directory.path(), Role::kOperator).Validate().ok()) << "of one key";
  EXPECT_EQ(ModeOf(directory / "operator.key"), 0600u);
  EXPECT_FALSE(std::filesystem::exists(directory / "operator.key.new"));
}

TEST(AddServerCertificate, HasTheNamesOfTheOneThatItReplaces) {
  const TempDirectory directory;
  ASSERT_TRUE(MakeCertificates(directory.path(),
                               {.server_names = {"launch.cluster", "10.0.0.7", "fd00::7"}})
                  .ok());
  EXPECT_EQ(AddServerCertificate(directory.path(), {}, {}).code(),
            absl::StatusCode::kAlreadyExists);
  const Certificate before = Load(directory / "server.crt");
  ASSERT_TRUE(AddServerCertificate(directory.path(), {}, {.renew = true}).ok());
  const Certificate after = Load(directory / "server.crt");
  EXPECT_NE(X509_cmp(before.get(), after.get()), 0);
  EXPECT_TRUE(Verifies(after.get(), Load(directory / "ca.crt").get(), X509_PURPOSE_SSL_SERVER));
  EXPECT_EQ(X509_check_host(after.get(), "launch.cluster", 0, 0, nullptr), 1);
  for (const char* address : {"127.0.0.1", "10.0.0.7", "fd00::7"})
    EXPECT_EQ(X509_check_ip_asc(after.get(), address, 0), 1) << address;
  EXPECT_EQ(NamesIn(after.get()), NamesIn(before.get())) << "none of them twice";
  ASSERT_TRUE(AddServerCertificate(directory.path(), {"other.cluster"}, {.renew = true}).ok());
  const Certificate other = Load(directory / "server.crt");
  EXPECT_EQ(X509_check_host(other.get(), "other.cluster", 0, 0, nullptr), 1);
  EXPECT_NE(X509_check_host(other.get(), "launch.cluster", 0, 0, nullptr), 1);
}

TEST(ServerNamesIn, AreThoseThatClientsReachItBy) {
  const TempDirectory directory;
  EXPECT_THAT(ServerNamesIn(directory.path()), IsOkAndHolds(testing::IsEmpty()));
  ASSERT_TRUE(
      MakeCertificates(directory.path(), {.server_names = {"launch.cluster", "fd00::7"}}).ok());
  EXPECT_THAT(
      ServerNamesIn(directory.path()),
      IsOkAndHolds(ElementsAre("localhost", "127.0.0.1", "::1", "launch.cluster", "fd00::7")));
  std::ofstream(directory / "server.crt") << "half of one";
  EXPECT_EQ(ServerNamesIn(directory.path()).status().code(), absl::StatusCode::kInternal);
}

TEST(OperatorTlsFiles, AreAWorkersWhereThereIsNoOperator) {
  const TempDirectory directory;
  CertOptions options;
  options.clients = {{Role::kWorker, kAnyName}};
  ASSERT_TRUE(MakeCertificates(directory.path(), options).ok());
  EXPECT_EQ(OperatorTlsFiles(directory.path()).cert, directory / "worker.crt");
  EXPECT_FALSE(OperatorTlsFiles(directory / "none").enabled());
}

TEST(MakeCertificates, NamesThisMachineAndTheGivenNames) {
  const TempDirectory directory;
  ASSERT_TRUE(
      MakeCertificates(directory.path(), {.server_names = {"launch.cluster", "10.0.0.7"}}).ok());
  const Certificate server = Load(directory / "server.crt");
  for (const char* name : {"localhost", "launch.cluster"})
    EXPECT_EQ(X509_check_host(server.get(), name, 0, 0, nullptr), 1) << name;
  for (const char* address : {"127.0.0.1", "::1", "10.0.0.7"})
    EXPECT_EQ(X509_check_ip_asc(server.get(), address, 0), 1) << address;
  EXPECT_NE(X509_check_host(server.get(), "other.cluster", 0, 0, nullptr), 1);
}

TEST(MakeCertificates, LastsAsLongAsAsked) {
  const TempDirectory directory;
  ASSERT_TRUE(
      MakeCertificates(directory.path(), {.server_names = {}, .lifetime = absl::Hours(36)}).ok());
  const Certificate worker = Load(directory / "worker.crt");
  int days = 0, seconds = 0;
  ASN1_TIME_diff(&days, &seconds, nullptr, X509_get0_notAfter(worker.get()));
  EXPECT_EQ(days, 1);
  EXPECT_LT(X509_cmp_current_time(X509_get0_notBefore(worker.get())), 0);
}

TEST(MakeCertificates, HasAnAuthorityThatOutlivesWhatItSigns) {
  const auto days_of = [](absl::Duration lifetime, absl::Duration authority_lifetime) {
    const TempDirectory directory;
    EXPECT_TRUE(MakeCertificates(directory.path(), {.server_names = {},
                                                    .lifetime = lifetime,
                                                    .authority_lifetime = authority_lifetime})
                    .ok());
    std::vector<int> days;
    for (const char* name : {"ca.crt", "server.crt", "worker.crt"}) {
      const Certificate one = Load(directory / name);
      int seconds = 0;
      ASN1_TIME_diff(&days.emplace_back(), &seconds, nullptr, X509_get0_notAfter(one.get()));
    }
    return days;
  };
  // Half a day more, so that the time of the test does not count.
  const absl::Duration year = absl::Hours(24 * 365 + 12), ten_years = absl::Hours(24 * 3650 + 12);
  EXPECT_EQ(days_of(year, ten_years), (std::vector<int>{3650, 365, 365}));
  EXPECT_EQ(days_of(ten_years, year), (std::vector<int>{3650, 3650, 3650}));
}

TEST(MakeCertificates, SignsNothingThatOutlivesTheAuthority) {
  const TempDirectory directory;
  ASSERT_TRUE(
      MakeCertificates(directory.path(), {.server_names = {}, .lifetime = absl::Hours(36)}).ok());
  ASSERT_TRUE(AddCertificate(directory.path(), "late", {Role::kViewer, "eve"},
                             {.lifetime = absl::Hours(24 * 365)})
                  .ok());
  EXPECT_EQ(ASN1_TIME_compare(X509_get0_notAfter(Load(directory / "late.crt").get()),
                              X509_get0_notAfter(Load(directory / "ca.crt").get())),
            0);
}

TEST(MakeCertificates, MakesTheDirectoryAndRefusesOneThatIsEverybodys) {
  const TempDirectory parent;
  EXPECT_TRUE(MakeCertificates(parent / "etc/coordd/tls", {}).ok());
  const std::string open = parent / "open";
  ASSERT_EQ(mkdir(open.c_str(), 0700), 0);
  ASSERT_EQ(chmod(open.c_str(), 0777), 0);
  const absl::Status status = MakeCertificates(open, {});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("can be written to by everybody"));
  EXPECT_TRUE(std::filesystem::is_empty(open));
}

TEST(AddServerCertificate, RenewsBothOrNeither) {
  const TempDirectory directory;
  ASSERT_TRUE(MakeCertificates(directory.path(), {}).ok());
  const std::string key = directory / "server.key", certificate = directory / "server.crt";
  ASSERT_EQ(chmod(key.c_str(), 0640), 0);  // a daemon's group reads it
  ASSERT_TRUE(AddServerCertificate(directory.path(), {}, {.renew = true}).ok());
  EXPECT_EQ(ModeOf(key), 0640u);
  const std::string old_key = FileText(key), old_certificate = FileText(certificate);
  const std::string in_the_way = certificate + ".new";
  ASSERT_EQ(mkdir(in_the_way.c_str(), 0700), 0);
  EXPECT_FALSE(AddServerCertificate(directory.path(), {}, {.renew = true}).ok());
  EXPECT_EQ(FileText(key), old_key);
  EXPECT_EQ(FileText(certificate), old_certificate);
  ASSERT_EQ(rmdir(in_the_way.c_str()), 0);
  ASSERT_EQ(unlink(certificate.c_str()), 0);
  EXPECT_EQ(AddServerCertificate(directory.path(), {}, {.renew = true}).code(),
            absl::StatusCode::kNotFound);
  EXPECT_TRUE(AddServerCertificate(directory.path(), {"launch.cluster"}, {.renew = true}).ok());
}

TEST(MakeCertificates, KeepsKeysFromOthers) {
  const TempDirectory parent;
  const std::string directory = parent / "certs";
  ASSERT_TRUE(MakeCertificates(directory, {}).ok());
  EXPECT_EQ(ModeOf(directory), 0700u);
  for (const char* key : {"/ca.key", "/server.key", "/worker.key"})
    EXPECT_EQ(ModeOf(directory + key), 0600u) << key;
}

TEST(MakeCertificates, TouchesNothingWhenOneIsThere) {
  const TempDirectory directory;
  ASSERT_TRUE(MakeCertificates(directory.path(), {}).ok());
  for (const char* name : {"ca.crt", "ca.key", "server.crt", "server.key", "worker.key",
                           "operator.crt", "operator.key"})
    ASSERT_EQ(unlink((directory / name).c_str()), 0);
  const std::string before = FileText(directory / "worker.crt");
  const absl::Status status = MakeCertificates(directory.path(), {});
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(status.message()), HasSubstr("worker.crt"));
  EXPECT_EQ(FileText(directory / "worker.crt"), before);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory.path()), {}), 1);
}

TEST(MakeCertificates, RefusesNamesThatCouldSayMore) {
  const TempDirectory directory;
  for (const char* name : {"", "a,DNS:b", "a b", "a\nb"}) {
    EXPECT_EQ(MakeCertificates(directory.path(), {.server_names = {name}}).code(),
              absl::StatusCode::kInvalidArgument)
        << name;
  }
  EXPECT_EQ(
      MakeCertificates(directory.path(), {.server_names = {}, .lifetime = absl::ZeroDuration()})
          .code(),
      absl::StatusCode::kInvalidArgument);
}

TEST(MakeCertificates, SaysWhichDirectoryItCannotMake) {
  const TempDirectory directory;
  std::ofstream(directory / "a") << "a file";
  const absl::Status status = MakeCertificates(directory / "a/b", {});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr(directory / "a/b"));
}

}  // namespace
}  // namespace coordd
