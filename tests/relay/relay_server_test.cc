// Workers, a relay and coordd, over real gRPC in one process.
#include "relay/relay_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "absl/strings/str_cat.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_directory.h"
#include "tests/support/test_server.h"

namespace coordd {
namespace {

using ::testing::HasSubstr;

class RelayServerTest : public ::testing::Test {
 protected:
  RelayServerTest() { StartRelay(); }

  RelayServerOptions Options() {
    return {.listen = absl::StrCat("unix:", directory_ / "relay"),
            .coordinators = {server_->listen_address()},
            .tls = {},
            .hostname = "host1",
            .decisions = {}};
  }
  void StartRelay() {
    auto relay = RelayServer::Start(Options(), Clock::Real());
    ASSERT_THAT(relay, IsOk());
    relay_ = *std::move(relay);
  }
  std::shared_ptr<grpc::Channel> Channel() {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(Options().listen, grpc::InsecureChannelCredentials(),
                                     arguments);
  }

  const TempDirectory directory_;
  TestServer server_;
  std::unique_ptr<RelayServer> relay_;
};

TEST_F(RelayServerTest, CarriesAJobFromItsJoinsToItsGoodbyes) {
  RawWorker a(Channel()), b(Channel()), direct(server_.Channel());
  ASSERT_TRUE(a.Join("train", "a", 3));
  ASSERT_TRUE(b.Join("train", "b", 3));
  ASSERT_TRUE(direct.Join("train", "direct", 3));
  for (RawWorker* worker : {&a, &b, &direct})
    ASSERT_TRUE(worker->ReadUntil(v1::CoordinatorMessage::kMembership).has_membership());
  EXPECT_THAT(server_.Get("/metrics").body, HasSubstr("coordd_node_sessions 1"));
  for (int step = 0; step < 50; ++step) {
    for (RawWorker* worker : {&a, &b, &direct}) {
      ASSERT_TRUE(worker->Ready(absl::StrCat("w", step % 5), 4));
      ASSERT_TRUE(worker->Heartbeat());
    }
    for (RawWorker* worker : {&a, &b, &direct})  // Read looks at the numbers
      ASSERT_TRUE(worker->ReadUntil(v1::CoordinatorMessage::kPlan).has_plan());
  }
  ASSERT_TRUE(a.Leave());
  EXPECT_TRUE(a.Finish().ok());
  EXPECT_TRUE(b.ReadUntil(v1::CoordinatorMessage::kAbort).has_abort());
}

TEST_F(RelayServerTest, AWorkerThatVanishesIsTheOneThatIsLost) {
  RawWorker a(Channel()), b(Channel());
  ASSERT_TRUE(a.Join("train", "a", 2));
  ASSERT_TRUE(b.Join("train", "b", 2));
  for (RawWorker* worker : {&a, &b})
    ASSERT_TRUE(worker->ReadUntil(v1::CoordinatorMessage::kMembership).has_membership());
  b.Vanish();
  const v1::Abort abort = a.ReadUntil(v1::CoordinatorMessage::kAbort).abort();
  ASSERT_EQ(abort.departures_size(), 1);
  EXPECT_EQ(abort.departures(0).worker_id(), "b");
}

TEST_F(RelayServerTest, ARefusalReachesWhomItIsFor) {
  RawWorker a(Channel()), stranger(Channel());
  ASSERT_TRUE(a.Join("train", "a", 2));
  ASSERT_TRUE(a.Read().has_waiting());
  v1::WorkerMessage join = JoinMessage("train", "b", 2);
  join.mutable_join()->set_token("guessed");
  ASSERT_TRUE(stranger.Send(join));
  const grpc::Status status = stranger.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_THAT(status.error_message(), HasSubstr("another run at this coordd is called job train"));
  RawWorker b(Channel());
  ASSERT_TRUE(b.Join("train", "b", 2));
  EXPECT_TRUE(b.ReadUntil(v1::CoordinatorMessage::kMembership).has_membership());
}

TEST_F(RelayServerTest, ItsEndIsUnavailableToItsWorkersAndTheNextOneTakesThem) {
  {
    RawWorker a(Channel());
    ASSERT_TRUE(a.Join("train", "a", 2));
    ASSERT_TRUE(a.Read().has_waiting());
    relay_.reset();
    EXPECT_EQ(a.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  }
  StartRelay();
  RawWorker a(Channel());
  ASSERT_TRUE(a.Join("alone", "a", 1));
  EXPECT_TRUE(a.ReadUntil(v1::CoordinatorMessage::kMembership).has_membership());
}

TEST_F(RelayServerTest, TheEndOfCoorddIsUnavailableToItsWorkers) {
  RawWorker a(Channel());
  ASSERT_TRUE(a.Join("train", "a", 2));
  ASSERT_TRUE(a.Read().has_waiting());
  server_->Stop("the test stops it", absl::Minutes(1));
  EXPECT_EQ(a.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST(RelayServerOptions, SayWhatIsWrong) {
  RelayServerOptions options{.listen = "tcp:1",
                             .coordinators = {{"127.0.0.1", 1}},
                             .tls = {},
                             .hostname = "",
                             .decisions = {}};
  EXPECT_THAT(options.Validate(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("expected unix: and a path")));
  options.listen = "unix:/tmp/x";
  options.coordinators.clear();
  EXPECT_THAT(options.Validate(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--coordinator is empty")));
}

}  // namespace
}  // namespace coordd
