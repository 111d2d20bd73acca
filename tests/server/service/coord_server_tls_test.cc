// Who gets past TLS.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/ssl.h>

#include "common/base/status_macros.h"
#include "common/grpc/certs.h"
#include "common/grpc/tls.h"
#include "common/launch/connection_file.h"
#include "tests/support/temp_directory.h"
#include "tests/support/test_server.h"

namespace coordd {
namespace {

class CoordServerTlsTest : public testing::Test {
 protected:
  CoordServerTlsTest() {
    EXPECT_TRUE(MakeCertificates(ours_.path(), {}).ok());
    EXPECT_TRUE(MakeCertificates(theirs_.path(), {}).ok());
    CoordServerOptions options = TestServerOptions();
    options.tls = ServerTlsFiles(ours_.path());
    options.connection_file = ours_ / "connection.json";
    server_.emplace(options);
  }

  // Joins with what `files` holds; whether a membership came.
  bool Joins(const TlsFiles& files) {
    const auto credentials = ChannelCredentialsFrom(files);
    EXPECT_TRUE(credentials.ok()) << credentials.status();
    return JoinsWith(*credentials);
  }
  bool JoinsWith(const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
    RawWorker worker(ChannelTo((*server_)->listen_address(), credentials));
    if (!worker.Join("train", "a", 1)) {
      EXPECT_EQ(worker.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
      return false;
    }
    const bool joined = worker.Read().has_membership();
    if (!joined) {
      EXPECT_EQ(worker.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
    }
    return joined;
  }

  // Whether a handshake with a good certificate succeeds when no later version may be used.
  bool ShakesHands(int version_max) {
    SSL_CTX* context = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_max_proto_version(context, version_max);
    const TlsFiles files = WorkerTlsFiles(ours_.path());
    SSL_CTX_use_certificate_chain_file(context, files.cert.c_str());
    SSL_CTX_use_PrivateKey_file(context, files.key.c_str(), SSL_FILETYPE_PEM);
    const unsigned char http2[] = "\x02h2";
    SSL_CTX_set_alpn_protos(context, http2, 3);
    SSL* ssl = SSL_new(context);
    const int fd = ConnectLoopback((*server_)->listen_address().port);
    SSL_set_fd(ssl, fd);
    const bool ok = SSL_connect(ssl) == 1;
    SSL_free(ssl);
    SSL_CTX_free(context);
    close(fd);
    return ok;
  }

  const TempDirectory ours_, theirs_;
  std::optional<TestServer> server_;
};

TEST_F(CoordServerTlsTest, AcceptsAWorkerOfItsAuthority) {
  EXPECT_TRUE(Joins(WorkerTlsFiles(ours_.path())));
}

TEST_F(CoordServerTlsTest, TellsAWorkerWithoutTlsThatItIsWanted) {
  RawWorker worker(ChannelTo((*server_)->listen_address(), grpc::InsecureChannelCredentials()));
  if (worker.Join("train", "a", 1)) {
    EXPECT_FALSE(worker.Read().has_membership());
  }
  const grpc::Status status = worker.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), testing::HasSubstr("this coordd wants TLS"));
}

TEST_F(CoordServerTlsTest, RefusesAWorkerWithoutACertificate) {
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = FileText(ours_ / "ca.crt");
  EXPECT_FALSE(JoinsWith(grpc::SslCredentials(options)));
}

TEST_F(CoordServerTlsTest, RefusesAWorkerOfAnotherAuthority) {
  TlsFiles files = WorkerTlsFiles(theirs_.path());
  files.ca = ours_ / "ca.crt";  // it knows coordd, coordd does not know it
  EXPECT_FALSE(Joins(files));
}

TEST_F(CoordServerTlsTest, IsRefusedByAWorkerThatTrustsAnotherAuthority) {
  EXPECT_FALSE(Joins(WorkerTlsFiles(theirs_.path())));
}

TEST_F(CoordServerTlsTest, RefusesItsOwnCertificateFromAWorker) {
  TlsFiles files = ServerTlsFiles(ours_.path());
  EXPECT_FALSE(Joins(files));  // it is for servers only
}

TEST_F(CoordServerTlsTest, SpeaksTls13Only) {
  EXPECT_TRUE(ShakesHands(TLS1_3_VERSION));
  EXPECT_FALSE(ShakesHands(TLS1_2_VERSION));
}

TEST_F(CoordServerTlsTest, TellsToolsOnThisMachineWhichCertificateToPresent) {
  const auto connection = ReadConnectionFile(ours_ / "connection.json");
  ASSERT_TRUE(connection.ok()) << connection.status();
  EXPECT_TRUE(Joins(connection->tls));
}

}  // namespace
}  // namespace coordd
