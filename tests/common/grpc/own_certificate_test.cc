#include "common/grpc/own_certificate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <fstream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/grpc/certs.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_directory.h"

namespace coordd {
namespace {

using ::testing::HasSubstr;

class OwnCertificateTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(MakeCertificates(ours_.path(), {}).ok());
    ASSERT_TRUE(MakeCertificates(theirs_.path(), {}).ok());
  }

  const TempDirectory ours_, theirs_;
};

TEST_F(OwnCertificateTest, IsGoodForTheSideThatItWasMadeFor) {
  EXPECT_THAT(CheckOwnCertificate(WorkerTlsFiles(ours_.path()), TlsSide::kClient), IsOk());
  EXPECT_THAT(CheckOwnCertificate(ServerTlsFiles(ours_.path()), TlsSide::kServer), IsOk());
  EXPECT_THAT(CheckOwnCertificate({}, TlsSide::kServer), IsOk());
}

TEST_F(OwnCertificateTest, IsRefusedForTheOther) {
  EXPECT_THAT(CheckOwnCertificate(WorkerTlsFiles(ours_.path()), TlsSide::kServer),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is not for servers")));
  EXPECT_THAT(CheckOwnCertificate(ServerTlsFiles(ours_.path()), TlsSide::kClient),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is not for clients")));
}

// The authority that is given with it is the other side's, which knows whom it takes.
TEST_F(OwnCertificateTest, MayBeOfAnotherAuthority) {
  TlsFiles files = WorkerTlsFiles(theirs_.path());
  files.ca = ours_ / "ca.crt";
  EXPECT_THAT(CheckOwnCertificate(files, TlsSide::kClient), IsOk());
}

// Signs itself.
std::string MakePem(int rsa_bits, bool is_authority, const EVP_MD* digest) {
  EVP_PKEY* const key = EVP_RSA_gen(static_cast<unsigned>(rsa_bits));
  X509* const made = X509_new();
  X509_set_version(made, X509_VERSION_3);
  X509_gmtime_adj(X509_getm_notBefore(made), -60);
  X509_gmtime_adj(X509_getm_notAfter(made), 3600);
  X509_set_pubkey(made, key);
  X509V3_CTX context;
  X509V3_set_ctx(&context, made, made, nullptr, nullptr, 0);
  for (const auto& [kind, text] :
       {std::pair{NID_ext_key_usage, "clientAuth,serverAuth"},
        std::pair{NID_subject_alt_name, "DNS:localhost"},
        std::pair{NID_basic_constraints, is_authority ? "CA:TRUE" : "CA:FALSE"}}) {
    X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, &context, kind, text);
    X509_add_ext(made, extension, -1);
    X509_EXTENSION_free(extension);
  }
  X509_sign(made, key, digest);
  BIO* const out = BIO_new(BIO_s_mem());
  PEM_write_bio_X509(out, made);
  char* text = nullptr;
  const long size = BIO_get_mem_data(out, &text);
  std::string pem(text, static_cast<size_t>(size));
  BIO_free(out);
  X509_free(made);
  EVP_PKEY_free(key);
  return pem;
}

// gRPC would say "empty address list:", and nothing behind it.
TEST_F(OwnCertificateTest, IsRefusedWhereOpenSslFindsItTooWeak) {
  for (const TlsSide side : {TlsSide::kClient, TlsSide::kServer}) {
    EXPECT_THAT(CheckOwnPem(MakePem(2048, false, EVP_sha256()), "my.crt", side), IsOk());
    EXPECT_THAT(CheckOwnPem(MakePem(1024, false, EVP_sha256()), "my.crt", side),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("TLS certificate my.crt cannot be used (ee key too small)")));
  }
}

TEST_F(OwnCertificateTest, IsNoAuthorityWhereItIsAClients) {
  const std::string pem = MakePem(2048, true, EVP_sha256());
  EXPECT_THAT(CheckOwnPem(pem, "my.crt", TlsSide::kServer), IsOk());
  EXPECT_THAT(CheckOwnPem(pem, "my.crt", TlsSide::kClient),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("TLS certificate my.crt: it is an authority's")));
}

TEST_F(OwnCertificateTest, SaysWhoItIsOfWhichAuthorityUntilWhen) {
  const auto facts = ReadCertificateFacts(WorkerTlsFiles(ours_.path()).cert);
  ASSERT_THAT(facts, IsOk());
  EXPECT_EQ(facts->who, "coordd://worker/*");
  const auto authority = ReadCertificateFacts(WorkerTlsFiles(ours_.path()).ca);
  ASSERT_THAT(authority, IsOk());
  EXPECT_EQ(facts->authority, authority->who);
  EXPECT_THAT(authority->who, HasSubstr("CN="));
  EXPECT_GT(facts->end, Clock::Real().Now());
  EXPECT_THAT(ReadCertificateFacts("/nowhere/my.crt"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("/nowhere/my.crt")));
}

TEST_F(OwnCertificateTest, TellsOneAuthorityFromAnother) {
  const std::string ours = AuthoritiesIn(ours_ / "ca.crt");
  const std::string theirs = AuthoritiesIn(theirs_ / "ca.crt");
  EXPECT_THAT(ours, testing::MatchesRegex("CN=coordd authority [0-9a-f]{8},O=coordd"));
  EXPECT_NE(ours, theirs);
  std::ofstream(ours_ / "both.crt") << FileText(ours_ / "ca.crt") << FileText(theirs_ / "ca.crt");
  EXPECT_EQ(AuthoritiesIn(ours_ / "both.crt"), absl::StrCat(ours, " and ", theirs));
  EXPECT_EQ(AuthoritiesIn("/nowhere/ca.crt"), "");
}

}  // namespace
}  // namespace coordd
