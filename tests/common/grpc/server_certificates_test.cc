#include "common/grpc/server_certificates.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "common/grpc/certs.h"
#include "common/net/address.h"
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
    Serve();
  }
  ~ServerCertificatesTest() override {
    if (server_ != nullptr) server_->Shutdown();
  }

  void Use(const TempDirectory& from) {
    for (const char* file : {"server.crt", "server.key", "ca.crt"})
      std::filesystem::copy_file(std::filesystem::path(from / "tls") / file,
                                 std::filesystem::path(used_ / "tls") / file, kCopy);
  }

  void Serve() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", certificates_->NewCredentials(), &port_);
    builder.RegisterCallbackGenericService(&service_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
  }

  std::shared_ptr<grpc::Channel> ChannelOf(const TempDirectory& whose) {
    const auto credentials = ChannelCredentialsFrom(WorkerTlsFiles(whose / "tls"));
    EXPECT_THAT(credentials, IsOk());
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(HostPort{"127.0.0.1", static_cast<uint16_t>(port_)}.ToString(),
                                     *credentials, arguments);
  }
  static bool Connects(const std::shared_ptr<grpc::Channel>& channel) {
    const auto deadline = std::chrono::system_clock::now() + std::chrono::seconds(20);
    for (auto state = channel->GetState(true); state != GRPC_CHANNEL_READY;
         state = channel->GetState(true)) {
      if (state == GRPC_CHANNEL_TRANSIENT_FAILURE) return false;
      if (!channel->WaitForStateChange(state, deadline)) return false;
    }
    return true;
  }

  const TempDirectory used_, first_, second_;
  std::unique_ptr<ServerCertificates> certificates_;
  int port_ = 0;
  grpc::CallbackGenericService service_;  // which knows no call
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(ServerCertificatesTest, AreThoseThatWereThere) {
  EXPECT_TRUE(Connects(ChannelOf(first_)));
  EXPECT_FALSE(Connects(ChannelOf(second_)));
  EXPECT_FALSE(certificates_->FilesChanged());
}

TEST_F(ServerCertificatesTest, AreReplacedForThoseWhoComeAndStayForThoseWhoAreThere) {
  const auto there = ChannelOf(first_);
  ASSERT_TRUE(Connects(there));
  Use(second_);
  EXPECT_TRUE(certificates_->FilesChanged());
  const auto changed = certificates_->Reload();
  ASSERT_THAT(changed, IsOk());
  EXPECT_TRUE(*changed);
  EXPECT_FALSE(certificates_->FilesChanged());
  EXPECT_TRUE(Connects(ChannelOf(second_)));
  EXPECT_FALSE(Connects(ChannelOf(first_)));
  EXPECT_EQ(there->GetState(false), GRPC_CHANNEL_READY);
}

TEST_F(ServerCertificatesTest, StayWhereTheNewOnesDoNotFit) {
  std::filesystem::copy_file(second_ / "tls/server.crt", used_ / "tls/server.crt", kCopy);
  EXPECT_TRUE(certificates_->FilesChanged());
  const auto changed = certificates_->Reload();
  EXPECT_EQ(changed.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Connects(ChannelOf(first_)));
  // The other half comes.
  Use(second_);
  EXPECT_TRUE(certificates_->Reload().value_or(false));
  EXPECT_TRUE(Connects(ChannelOf(second_)));
}

TEST_F(ServerCertificatesTest, AreNotChangedByFilesThatAreGone) {
  std::filesystem::remove(std::filesystem::path(used_ / "tls") / "server.key");
  EXPECT_FALSE(certificates_->FilesChanged());
  Use(second_);
  EXPECT_TRUE(certificates_->FilesChanged());
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
