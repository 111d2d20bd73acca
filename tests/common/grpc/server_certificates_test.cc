#include "common/grpc/server_certificates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "common/grpc/certs.h"
#include "common/grpc/tls_handles.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_directory.h"

namespace coordd {
namespace {

constexpr auto kCopy = std::filesystem::copy_options::overwrite_existing;

class ServerCertificatesTest : public testing::Test {
 protected:
  ServerCertificatesTest() {
    for (const TempDirectory* one : {&used_, &first_, &second_})
      EXPECT_THAT(MakeCertificates(*one / "tls", {}), IsOk());
    Use(first_);
    auto loaded = ServerCertificates::Load(ServerTlsFiles(used_ / "tls"));
    EXPECT_THAT(loaded, IsOk());
    certificates_ = *std::move(loaded);
  }

  void Use(const TempDirectory& from) {
    for (const char* file : {"server.crt", "server.key", "ca.crt"})
      std::filesystem::copy_file(std::filesystem::path(from / "tls") / file,
                                 std::filesystem::path(used_ / "tls") / file, kCopy);
  }

  // Both sides of a connection, through memory.
  struct Ends {
    TlsOwned<SSL> client, server;

    // Each says what it has to say until neither has anything.
    bool ShakeHands() const {
      for (int i = 0; i < 20; ++i) {
        const int client_done = SSL_do_handshake(client.get());
        const int server_done = SSL_do_handshake(server.get());
        ERR_clear_error();
        if (client_done == 1 && server_done == 1) return true;
      }
      return false;
    }
    bool Carries(const std::string& text) const {
      std::string got(text.size(), 0);
      return SSL_write(client.get(), text.data(), static_cast<int>(text.size())) > 0 &&
             SSL_read(server.get(), got.data(), static_cast<int>(got.size())) > 0 && got == text;
    }
  };
  static TlsOwned<SSL_CTX> ClientOf(const TempDirectory& whose) {
    const TlsFiles files = WorkerTlsFiles(whose / "tls");
    TlsOwned<SSL_CTX> context(SSL_CTX_new(TLS_client_method()));
    SSL_CTX_use_certificate_chain_file(context.get(), files.cert.c_str());
    SSL_CTX_use_PrivateKey_file(context.get(), files.key.c_str(), SSL_FILETYPE_PEM);
    SSL_CTX_load_verify_locations(context.get(), files.ca.c_str(), nullptr);
    SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
    const unsigned char http2[] = "\x02h2";
    SSL_CTX_set_alpn_protos(context.get(), http2, 3);
    return context;
  }
  Ends EndsWith(SSL_CTX* client) const {
    Ends ends = {TlsOwned<SSL>(SSL_new(client)),
                 TlsOwned<SSL>(SSL_new(certificates_->context().get()))};
    BIO *one = nullptr, *other = nullptr;
    BIO_new_bio_pair(&one, 0, &other, 0);
    SSL_set_bio(ends.client.get(), one, one);
    SSL_set_bio(ends.server.get(), other, other);
    SSL_set_connect_state(ends.client.get());
    SSL_set_accept_state(ends.server.get());
    return ends;
  }
  bool Connects(const TempDirectory& whose) const {
    const TlsOwned<SSL_CTX> client = ClientOf(whose);
    return EndsWith(client.get()).ShakeHands();
  }

  const TempDirectory used_, first_, second_;
  std::unique_ptr<ServerCertificates> certificates_;
};

TEST_F(ServerCertificatesTest, AreThoseThatWereThere) {
  EXPECT_TRUE(Connects(first_));
  EXPECT_FALSE(Connects(second_));
  EXPECT_FALSE(certificates_->FilesChanged());
}

TEST_F(ServerCertificatesTest, AreReplacedForThoseWhoComeAndStayForThoseWhoAreThere) {
  const TlsOwned<SSL_CTX> client = ClientOf(first_);
  const Ends there = EndsWith(client.get());
  ASSERT_TRUE(there.ShakeHands());
  Use(second_);
  EXPECT_TRUE(certificates_->FilesChanged());
  const auto changed = certificates_->Reload();
  ASSERT_THAT(changed, IsOk());
  EXPECT_TRUE(*changed);
  EXPECT_FALSE(certificates_->FilesChanged());
  EXPECT_TRUE(Connects(second_));
  EXPECT_FALSE(Connects(first_));
  EXPECT_TRUE(there.Carries("still here"));
}

TEST_F(ServerCertificatesTest, AreForWhoShowsOneAndSpeaksHttp2OverTls13) {
  const TlsOwned<SSL_CTX> old = ClientOf(first_), other = ClientOf(first_);
  SSL_CTX_set_max_proto_version(old.get(), TLS1_2_VERSION);
  EXPECT_FALSE(EndsWith(old.get()).ShakeHands());
  const unsigned char http1[] = "\x08http/1.1";
  SSL_CTX_set_alpn_protos(other.get(), http1, 9);
  EXPECT_FALSE(EndsWith(other.get()).ShakeHands());
  const TlsOwned<SSL_CTX> bare(SSL_CTX_new(TLS_client_method()));
  EXPECT_FALSE(EndsWith(bare.get()).ShakeHands());
}

TEST_F(ServerCertificatesTest, TakeFewCertificatesThatSomebodyBringsForHisAuthorities) {
  const TlsOwned<SSL_CTX> client = ClientOf(first_);
  const TlsOwned<SSL> any(SSL_new(client.get()));
  X509* const one = SSL_get_certificate(any.get());
  const int bytes = i2d_X509(one, nullptr);
  const auto bring = [&](long most) {
    for (long brought = bytes; brought + bytes <= most; brought += bytes + 5)
      ASSERT_EQ(SSL_CTX_add1_chain_cert(client.get(), one), 1);
  };
  bring(ServerCertificates::kMostChainBytes / 2);
  EXPECT_TRUE(EndsWith(client.get()).ShakeHands());
  bring(ServerCertificates::kMostChainBytes);
  EXPECT_FALSE(EndsWith(client.get()).ShakeHands());
}

TEST_F(ServerCertificatesTest, StayWhereTheNewOnesDoNotFit) {
  std::filesystem::copy_file(second_ / "tls/server.crt", used_ / "tls/server.crt", kCopy);
  EXPECT_TRUE(certificates_->FilesChanged());
  const auto changed = certificates_->Reload();
  EXPECT_EQ(changed.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Connects(first_));
  // The other half comes.
  Use(second_);
  EXPECT_TRUE(certificates_->Reload().value_or(false));
  EXPECT_TRUE(Connects(second_));
}

TEST_F(ServerCertificatesTest, AreNotReplacedByWhatNobodyWouldTake) {
  const std::filesystem::path used = used_ / "tls", first = first_ / "tls",
                              second = second_ / "tls";
  const auto refused = [this](const std::string& why) {
    const auto changed = certificates_->Reload();
    EXPECT_THAT(changed.status(),
                StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr(why)));
    EXPECT_TRUE(Connects(first_)) << why;
  };
  for (const char* ending : {".crt", ".key"})
    std::filesystem::copy_file(first / (std::string("worker") + ending),
                               used / (std::string("server") + ending), kCopy);
  refused("is not for servers");
  Use(first_);
  std::filesystem::copy_file(first / "operator.crt", used / "ca.crt", kCopy);
  refused("certificate 1 is no authority's");
  std::ofstream(used / "ca.crt") << std::ifstream(first / "ca.crt").rdbuf()
                                 << "-----BEGIN CERTIFICATE-----\nnonsense\n"
                                 << "-----END CERTIFICATE-----\n"
                                 << std::ifstream(second / "ca.crt").rdbuf();
  refused("certificate 2 cannot be read");
  std::ofstream(used / "ca.crt") << std::ifstream(first / "ca.crt").rdbuf()
                                 << std::ifstream(second / "ca.crt").rdbuf();
  EXPECT_TRUE(certificates_->Reload().value_or(false));
}

TEST_F(ServerCertificatesTest, AreNotChangedByFilesThatAreGone) {
  std::filesystem::remove(std::filesystem::path(used_ / "tls") / "server.key");
  EXPECT_FALSE(certificates_->FilesChanged());
  EXPECT_TRUE(certificates_->IsFileGone());
  Use(second_);
  EXPECT_TRUE(certificates_->FilesChanged());
  EXPECT_FALSE(certificates_->IsFileGone());
}

TEST_F(ServerCertificatesTest, AreNotReplacedByThemselves) {
  Use(first_);
  EXPECT_FALSE(certificates_->Reload().value_or(true));
}

TEST_F(ServerCertificatesTest, EndWithTheFirstOfThem) {
  const TempDirectory directory;
  CertOptions options;
  options.lifetime = absl::Hours(24 * 20);
  ASSERT_THAT(MakeCertificates(directory / "tls", options), IsOk());
  const auto loaded = ServerCertificates::Load(ServerTlsFiles(directory / "tls"));
  ASSERT_THAT(loaded, IsOk());
  EXPECT_LT((*loaded)->end(), certificates_->end());
  EXPECT_NEAR(absl::ToDoubleHours(certificates_->end() - (*loaded)->end()), 24.0 * 345, 1);
}

}  // namespace
}  // namespace coordd
