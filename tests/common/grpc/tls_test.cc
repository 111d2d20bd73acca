#include "common/grpc/tls.h"

#include <gmock/gmock.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "common/grpc/certs.h"
#include "tests/support/temp_directory.h"

namespace coordd {
namespace {

using testing::HasSubstr;

class TlsFilesTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(MakeCertificates(directory_.path(), {}).ok()); }

  void ExpectInvalid(const TlsFiles& files, const std::string& why) {
    const absl::Status status = files.Validate();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
    EXPECT_FALSE(ServerCredentialsFrom(files).ok());
    EXPECT_FALSE(ChannelCredentialsFrom(files).ok());
  }

  const TempDirectory directory_;
};

TEST_F(TlsFilesTest, AreGoodAsMade) {
  EXPECT_TRUE(ServerTlsFiles(directory_.path()).Validate().ok());
  EXPECT_TRUE(WorkerTlsFiles(directory_.path()).Validate().ok());
  EXPECT_TRUE(ServerCredentialsFrom(ServerTlsFiles(directory_.path())).ok());
  EXPECT_TRUE(ChannelCredentialsFrom(WorkerTlsFiles(directory_.path())).ok());
}

TEST_F(TlsFilesTest, NoneMeansNoTls) {
  EXPECT_FALSE(TlsFiles().enabled());
  EXPECT_TRUE(TlsFiles().Validate().ok());
  EXPECT_TRUE(ServerCredentialsFrom({}).ok());
  EXPECT_TRUE(ChannelCredentialsFrom({}).ok());
}

TEST_F(TlsFilesTest, ComeAllOrNot) {
  TlsFiles files = ServerTlsFiles(directory_.path());
  files.ca.clear();
  ExpectInvalid(files, "--tls-ca");
  files = ServerTlsFiles(directory_.path());
  files.key.clear();
  ExpectInvalid(files, "--tls-key");
}

TEST_F(TlsFilesTest, NamesTheFileThatIsMissing) {
  TlsFiles files = ServerTlsFiles(directory_.path());
  files.ca = directory_ / "none.crt";
  ExpectInvalid(files, files.ca);
}

TEST_F(TlsFilesTest, RefusesAKeyThatOthersCanRead) {
  const TlsFiles files = ServerTlsFiles(directory_.path());
  ASSERT_EQ(chmod(files.key.c_str(), 0640), 0);
  ExpectInvalid(files, "has mode 0640");
}

TEST_F(TlsFilesTest, RefusesTheKeyOfAnotherCertificate) {
  TlsFiles files = ServerTlsFiles(directory_.path());
  files.key = directory_ / "worker.key";
  ExpectInvalid(files, "does not belong to certificate");
}

TEST_F(TlsFilesTest, RefusesGarbage) {
  TlsFiles files = ServerTlsFiles(directory_.path());
  std::ofstream(directory_ / "garbage") << "not a certificate";
  files.cert = directory_ / "garbage";
  ExpectInvalid(files, "no certificate in PEM form");
  files = ServerTlsFiles(directory_.path());
  files.ca = directory_.path();
  ExpectInvalid(files, "is a folder; expected a PEM file");
  ASSERT_EQ(mkfifo((directory_ / "pipe").c_str(), 0600), 0);
  files.ca = directory_ / "pipe";
  ExpectInvalid(files, "is a pipe; expected a PEM file");
}

}  // namespace
}  // namespace coordd
