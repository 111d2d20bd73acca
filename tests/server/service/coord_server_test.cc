#include "server/service/coord_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <future>
#include <random>

#include "common/base/version.h"
#include "common/launch/connection_file.h"
#include "coordd/v1/admin.grpc.pb.h"
#include "tests/support/byte_call.h"
#include "tests/support/temp_directory.h"
#include "tests/support/test_server.h"

namespace coordd {
namespace {

using testing::HasSubstr;

TEST(CoordServer, BringsTwoWorkersFromJoinToAPlan) {
  TestServer server;
  TwoWorkers job(server);
  EXPECT_EQ(job.a.rank + job.b.rank, 1);
  EXPECT_EQ(job.a.generation, 1);
  ASSERT_TRUE(job.a.Ready("gradient", 1000));
  ASSERT_TRUE(job.b.Ready("gradient", 1000));
  for (RawWorker* worker : {&job.a, &job.b}) {
    const auto plan = worker->ReadUntil(v1::CoordinatorMessage::kPlan).plan();
    ASSERT_EQ(plan.batches_size(), 1);
    EXPECT_THAT(plan.batches(0).tensors(), testing::ElementsAre("gradient"));
  }
}

TEST(CoordServer, TellsTheOthersWhoWasLost) {
  TestServer server;
  TwoWorkers job(server);
  job.b.Vanish();
  const auto message = job.a.ReadUntil(v1::CoordinatorMessage::kAbort);
  ASSERT_EQ(message.abort().departures_size(), 1);
  EXPECT_TRUE(message.abort().in_flight());
  EXPECT_EQ(message.abort().departures(0).worker_id(), "b");
  EXPECT_EQ(message.abort().departures(0).cause(), v1::DEPARTURE_CAUSE_CONNECTION_LOST);
}

TEST(CoordServer, TellsTheWorkersThatItStops) {
  TestServer server;
  TwoWorkers job(server);
  const HostPort address = server->listen_address();
  auto stop = std::async(std::launch::async, [&] { server->Stop("the test stops it"); });
  for (RawWorker* worker : {&job.a, &job.b}) {
    // gRPC may drop a message that a failing status follows at once: the status says why, too.
    const v1::CoordinatorMessage last = worker->ReadUntil(v1::CoordinatorMessage::kShutdown);
    if (last.has_shutdown()) {
      EXPECT_THAT(last.shutdown().reason(), HasSubstr("the test stops it"));
    }
    const grpc::Status status = worker->Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
    EXPECT_THAT(status.error_message(), HasSubstr("the test stops it"));
  }
  stop.wait();
  EXPECT_LT(ConnectLoopback(address.port), 0);
  EXPECT_LT(ConnectLoopback(server->http_address()->port), 0);
}

TEST(CoordServer, StopsWhileWorkersAreSilent) {
  TestServer server;
  TwoWorkers job(server);
  RawWorker never_joined(server.Channel());
  server->Stop("the test stops it");
  server->Stop("and once more");
  EXPECT_LT(ConnectLoopback(server->listen_address().port), 0);
}

TEST(CoordServer, SurvivesAGarbageClient) {
  TestServer server;
  std::mt19937 random(1);
  for (int i = 0; i < 20; ++i) {
    std::string bytes(1 + random() % 5000, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    if (i % 2 == 0) bytes = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes;
    const int fd = ConnectLoopback(server->listen_address().port);
    ASSERT_GE(fd, 0);
    EXPECT_GE(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL), 0);
    close(fd);
  }
  RawWorker worker(server.Channel());
  ASSERT_TRUE(worker.Join("train", "a", 1));
  EXPECT_TRUE(worker.ReadUntil(v1::CoordinatorMessage::kMembership).has_membership());
}

TEST(CoordServer, RefusesAHugeMessage) {
  TestServer server;
  v1::WorkerMessage join = JoinMessage("train", "a", 1);
  join.mutable_join()->set_metrics_address(std::string(2 << 20, 'x'));
  RawWorker worker(server.Channel());
  worker.Send(join);
  EXPECT_FALSE(worker.Finish().ok());
}

TEST(CoordServer, AnswersOperators) {
  TestServer server;
  TwoWorkers job(server);
  const auto stub = v1::Admin::NewStub(server.Channel());
  v1::ServerState state;
  {
    grpc::ClientContext context;
    context.set_deadline(TestDeadline());
    ASSERT_TRUE(stub->GetState(&context, {}, &state).ok());
  }
  EXPECT_EQ(state.version(), kVersion);
  EXPECT_EQ(state.listen(), server->listen_address().ToString());
  EXPECT_EQ(state.http(), server->http_address()->ToString());
  ASSERT_EQ(state.jobs_size(), 1);
  EXPECT_EQ(state.jobs(0).phase(), v1::JOB_PHASE_RUNNING);
  ASSERT_EQ(state.jobs(0).workers_size(), 2);
  EXPECT_EQ(state.jobs(0).workers(0).pid(), 4711);
  v1::GetStateRequest other;
  other.set_job("another");
  grpc::ClientContext context;
  context.set_deadline(TestDeadline());
  ASSERT_TRUE(stub->GetState(&context, other, &state).ok());
  EXPECT_EQ(state.jobs_size(), 0);
}

constexpr char kReflection[] = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";

TEST(CoordServer, TellsNobodyWhatThereIsToCallUnlessItIsToldTo) {
  TestServer server;
  const ByteReply services = CallWithBytes(server.Channel(), kReflection,
                                           {std::string("\x3a\x00", 2)}, /*half_close=*/true);
  EXPECT_EQ(services.status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

TEST(CoordServer, OffersHealthAndReflection) {
  CoordServerOptions options = TestServerOptions();
  options.grpc_reflection = true;
  TestServer server(options);
  const ByteReply health =
      CallWithBytes(server.Channel(), "/grpc.health.v1.Health/Check", {""}, /*half_close=*/true);
  EXPECT_THAT(health.messages, testing::ElementsAre("\x08\x01"));  // status: SERVING
  const ByteReply services =
      CallWithBytes(server.Channel(), kReflection, {std::string("\x3a\x00", 2)},
                    /*half_close=*/true);  // list_services: ""
  ASSERT_EQ(services.messages.size(), 1u) << services.status.error_message();
  for (const char* name : {"coordd.v1.Coordinator", "coordd.v1.Store", "coordd.v1.Admin"})
    EXPECT_THAT(services.messages[0], HasSubstr(name));
}

TEST(CoordServer, SaysWhichAddressItCannotHave) {
  TestServer first;
  CoordServerOptions options = TestServerOptions();
  options.listen = first->listen_address();
  prometheus::Registry registry;
  const auto second = CoordServer::Start(options, Clock::Real(), registry);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(options.listen.ToString()));

  options = TestServerOptions();
  options.http = first->http_address();
  prometheus::Registry other_registry;
  EXPECT_EQ(CoordServer::Start(options, Clock::Real(), other_registry).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST(CoordServer, RefusesToListenBeyondThisMachineWithoutTls) {
  CoordServerOptions options = TestServerOptions();
  options.listen.host = "0.0.0.0";
  const absl::Status status = options.Validate();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(HasSubstr("0.0.0.0"), HasSubstr("--tls-cert"), HasSubstr("--insecure"),
                             HasSubstr("anyone who reaches it")));
  options.insecure = true;
  EXPECT_TRUE(options.Validate().ok());
}

TEST(CoordServer, ChecksItsOptions) {
  CoordServerOptions options = TestServerOptions();
  options.decisions.lease = absl::Seconds(1);  // shorter than two heartbeats
  EXPECT_EQ(options.Validate().code(), absl::StatusCode::kInvalidArgument);
  options = TestServerOptions();
  options.tls.cert = "server.crt";
  EXPECT_THAT(std::string(options.Validate().message()), HasSubstr("--tls-key"));
}

TEST(CoordServer, IsFoundByItsConnectionFileUntilItStops) {
  const TempDirectory directory;
  CoordServerOptions options = TestServerOptions();
  options.connection_file = directory / "coordd.json";
  TestServer server(options);
  const auto connection = ReadConnectionFile(options.connection_file);
  ASSERT_TRUE(connection.ok()) << connection.status();
  EXPECT_EQ(connection->listen, server->listen_address().ToString());
  EXPECT_EQ(connection->http, server->http_address()->ToString());
  EXPECT_EQ(connection->pid, getpid());
  EXPECT_EQ(connection->version, kVersion);
  EXPECT_FALSE(connection->tls.enabled());
  server->Stop("the test stops it");
  EXPECT_NE(access(options.connection_file.c_str(), F_OK), 0);
}

TEST(CoordServer, DoesNotStartWithoutTheConnectionFileThatWasAskedFor) {
  const TempDirectory directory;
  CoordServerOptions options = TestServerOptions();
  options.connection_file = directory / "missing/coordd.json";
  prometheus::Registry registry;
  EXPECT_EQ(CoordServer::Start(options, Clock::Real(), registry).status().code(),
            absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace coordd
