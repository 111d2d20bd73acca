#include "common/grpc/own_certificate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

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
