#include "worker/coordinator/grpc_coordinator_link.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "coordd/v1/session.pb.h"
#include "tests/support/hang_limit.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::HasSubstr;

// Sends one message of these bytes in each call, and does not end it.
class Saying final : public grpc::CallbackGenericService {
 public:
  std::string bytes;

 private:
  class Call final : public grpc::ServerGenericBidiReactor {
   public:
    explicit Call(const std::string& bytes) {
      const grpc::Slice slice(bytes);
      said_ = grpc::ByteBuffer(&slice, 1);
      StartWrite(&said_);
    }

   private:
    void OnCancel() override { Finish(grpc::Status::CANCELLED); }
    void OnDone() override { delete this; }

    grpc::ByteBuffer said_;
  };

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    return new Call(bytes);
  }
};

class GrpcCoordinatorLinkTest : public ::testing::Test {
 protected:
  GrpcCoordinatorLinkTest() {
    server_ = grpc::ServerBuilder()
                  .AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_)
                  .RegisterCallbackGenericService(&coordd_)
                  .BuildAndStart();
  }
  std::unique_ptr<CoordinatorLink> Start(CoordinatorLink::Callbacks callbacks) {
    auto link = NewGrpcCoordinatorLink(
        grpc::CreateChannel(absl::StrCat("127.0.0.1:", port_), grpc::InsecureChannelCredentials()));
    link->Start(std::move(callbacks));
    return link;
  }

  Saying coordd_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(GrpcCoordinatorLinkTest, BringsWhatCoorddSays) {
  v1::CoordinatorMessage message;
  message.set_generation(7);
  coordd_.bytes = message.SerializeAsString();
  absl::Notification heard;
  int64_t generation = 0;
  const auto link = Start({.on_message =
                               [&](v1::CoordinatorMessage said) {
                                 generation = said.generation();
                                 heard.Notify();
                               },
                           .on_closed = [](const absl::Status&) {}});
  ASSERT_TRUE(heard.WaitForNotificationWithTimeout(kHangLimit));
  EXPECT_EQ(generation, 7);
}

// Nobody waits for the end of a stream that goes on.
TEST_F(GrpcCoordinatorLinkTest, EndsWithWhatItsMessagesAreWhereTheyAreNone) {
  coordd_.bytes = "\xff\xff\xff garbage";
  absl::Notification ended;
  absl::Status why;
  const auto link = Start({.on_message = [](const v1::CoordinatorMessage&) {},
                           .on_closed =
                               [&](absl::Status status) {
                                 why = std::move(status);
                                 ended.Notify();
                               }});
  ASSERT_TRUE(ended.WaitForNotificationWithTimeout(kHangLimit));
  EXPECT_THAT(why, StatusIs(absl::StatusCode::kInternal,
                            HasSubstr("coordd sent what is no message of its protocol")));
}

}  // namespace
}  // namespace coordd
