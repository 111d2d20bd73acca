// Workers, a relay and coordd, over real gRPC in one process.
#include "relay/relay_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_directory.h"
#include "tests/support/test_server.h"

namespace coordd {
namespace {

using ::testing::ContainsRegex;
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
  void StartRelay(const WorkerPatience& patience = {}) {
    RelayServerOptions options = Options();
    options.patience = patience;
    auto relay = RelayServer::Start(options, Clock::Real());
    ASSERT_THAT(relay, IsOk());
    relay_ = *std::move(relay);
  }
  std::shared_ptr<grpc::Channel> Channel() {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // as workers: what is unread stays small
    return grpc::CreateCustomChannel(Options().listen, grpc::InsecureChannelCredentials(),
                                     arguments);
  }

  // However slow this machine is: no test is of leases.
  static CoordServerOptions Patient() {
    CoordServerOptions options = TestServerOptions();
    options.decisions.lease = absl::Hours(1);
    return options;
  }

  const TempDirectory directory_;
  TestServer server_{Patient()};
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

TEST_F(RelayServerTest, SaysWhomItServesWhereAndThroughWhichCoordd) {
  const std::string said = relay_->Description();
  EXPECT_THAT(said, HasSubstr(absl::StrCat("workers of one job on host1 find it at ",
                                           Options().listen, "; ")));
  EXPECT_THAT(said, HasSubstr(absl::StrCat("coordd at ", server_->listen_address().ToString(),
                                           ", without TLS; they serve their metrics themselves")));
  relay_.reset();
  RelayServerOptions options = Options();
  options.metrics = HostPort{"127.0.0.1", 0};
  auto serves_metrics = RelayServer::Start(options, Clock::Real());
  ASSERT_THAT(serves_metrics, IsOk());
  EXPECT_THAT((*serves_metrics)->Description(),
              ContainsRegex("it serves their metrics at http://127.0.0.1:[0-9]+/node$"));
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

TEST_F(RelayServerTest, ASecondOneIsRefusedAndLeavesTheFirstAlone) {
  EXPECT_THAT(RelayServer::Start(Options(), Clock::Real()),
              StatusIs(absl::StatusCode::kUnavailable,
                       absl::StrCat("cannot listen on ", Options().listen,
                                    ": another relay or program listens there: end it or give "
                                    "another path")));
  RawWorker a(Channel());
  ASSERT_TRUE(a.Join("alone", "a", 1));
  EXPECT_TRUE(a.ReadUntil(v1::CoordinatorMessage::kMembership).has_membership());
}

TEST_F(RelayServerTest, ItsEndRemovesNoSocketButItsOwn) {
  const std::string place = directory_ / "relay", aside = directory_ / "aside";
  ASSERT_EQ(std::rename(place.c_str(), aside.c_str()), 0);
  auto next = RelayServer::Start(Options(), Clock::Real());
  ASSERT_THAT(next, IsOk());
  relay_.reset();
  RawWorker a(Channel());
  ASSERT_TRUE(a.Join("alone", "a", 1));
  EXPECT_TRUE(a.ReadUntil(v1::CoordinatorMessage::kMembership).has_membership());
  next->reset();
  EXPECT_FALSE(std::filesystem::exists(place));
}

TEST_F(RelayServerTest, TheEndOfCoorddIsUnavailableToItsWorkers) {
  RawWorker a(Channel());
  ASSERT_TRUE(a.Join("train", "a", 2));
  ASSERT_TRUE(a.Read().has_waiting());
  server_->Stop("the test stops it", absl::Minutes(1));
  EXPECT_EQ(a.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(RelayServerTest, AWorkerThatNeverReadsIsEndedAndNamed) {
  relay_.reset();
  StartRelay({.takes = absl::Milliseconds(300), .closes = absl::Milliseconds(300)});
  RawWorker deaf(Channel()), honest(server_.Channel());
  v1::WorkerMessage join = JoinMessage("train", "deaf", 2);
  join.mutable_join()->set_pid(4711);
  ASSERT_TRUE(deaf.Send(join));
  ASSERT_TRUE(honest.Join("train", "honest", 2));
  for (RawWorker* worker : {&deaf, &honest})
    ASSERT_TRUE(worker->ReadUntil(v1::CoordinatorMessage::kMembership).has_membership());
  testing::internal::CaptureStderr();
  // Plans of more than gRPC keeps for a program that does not read.
  v1::CoordinatorMessage heard;
  for (int step = 0; step < 600 && !heard.has_abort(); ++step) {
    const std::string name = absl::StrCat(step, std::string(500, 'n'));
    for (RawWorker* worker : {&deaf, &honest}) worker->Ready(name, 1);
    do {
      heard = honest.Read();
    } while (!heard.has_plan() && !heard.has_abort() && heard.ByteSizeLong() > 0);
  }
  if (!heard.has_abort()) heard = honest.ReadUntil(v1::CoordinatorMessage::kAbort);
  const v1::Abort& abort = heard.abort();
  ASSERT_EQ(abort.departures_size(), 1);
  EXPECT_EQ(abort.departures(0).worker_id(), "deaf");
  EXPECT_THAT(abort.departures(0).detail(), HasSubstr("it has taken nothing for"));
  // Its stream is at its end, behind what gRPC had for it already.
  EXPECT_EQ(deaf.Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("the session of worker deaf (process 4711) was ended: it has taken"));
}

TEST_F(RelayServerTest, AWorkerThatReadsLateLosesNothing) {
  constexpr int kMost = 1 << 20;  // gRPC itself keeps some ten thousand answers
  constexpr int kBehind = 1000;
  relay_.reset();
  StartRelay({.takes = absl::Hours(1)});  // however slow this machine is
  RawWorker late(Channel());
  ASSERT_TRUE(late.Join("train", "late", 1));
  ASSERT_TRUE(late.ReadUntil(v1::CoordinatorMessage::kMembership).has_membership());
  std::atomic<int> sent = 0, wanted = kMost;
  absl::Notification sent_all;
  std::thread sender([&] {
    while (sent < wanted && late.Heartbeat()) ++sent;
    sent_all.Notify();
  });
  // Until it is held up: nobody else tells. Too early a look makes the test easier, not wrong.
  for (int before = -1; std::exchange(before, sent) != sent;)
    if (sent_all.WaitForNotificationWithTimeout(absl::Milliseconds(500))) break;
  EXPECT_LT(sent, kMost);
  EXPECT_FALSE(sent_all.HasBeenNotified());
  wanted = sent + kBehind;
  int answers = 0;
  while (answers < wanted && late.Read().has_lease_ack()) ++answers;
  sender.join();
  EXPECT_EQ(sent, wanted);
  EXPECT_EQ(answers, wanted);
}

TEST(RelayServerOptions, SayWhatIsWrong) {
  RelayServerOptions options{.listen = "tcp:1",
                             .coordinators = {{"127.0.0.1", 1}},
                             .tls = {},
                             .hostname = "",
                             .decisions = {}};
  EXPECT_THAT(options.Validate(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("expected unix: and a path")));
  options.listen = "unix:/" + std::string(100, 'x');
  EXPECT_THAT(options.Validate(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at most 100 bytes")));
  options.listen = "unix:/tmp/x";
  options.coordinators.clear();
  EXPECT_THAT(options.Validate(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--coordinator is empty")));
}

}  // namespace
}  // namespace coordd
