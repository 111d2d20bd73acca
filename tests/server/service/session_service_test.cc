#include "server/service/session_service.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <prometheus/registry.h>

#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/door/connection_table.h"
#include "server/door/grpc_port.h"
#include "server/metrics/server_metrics.h"
#include "server/service/coordinator.h"
#include "tests/support/byte_call.h"
#include "tests/support/fake_clock.h"
#include "tests/support/raw_worker.h"

namespace coordd {
namespace {

using testing::HasSubstr;

constexpr char kSession[] = "/coordd.v1.Coordinator/Session";

// The service with its coordinator thread, and nothing else of coordd.
class SessionServiceTest : public testing::Test {
 protected:
  explicit SessionServiceTest(const UnreadBounds& bounds = {}) : bounds_(bounds) {
    coordinator_.Start({
        .deliver = [this](const Deliver& deliver) { service_.CarryOut(deliver); },
        .close_session = [this](const CloseSession& close) { service_.CarryOut(close); },
        .session_ended = [this](SessionId id) { service_.OnSessionEnded(id); },
        .store_reply = [](StoreReply&&) {},
        .event = [](const Event&) {},
        .tick = [this](absl::Time now) { service_.Tick(now); },
        .next_deadline = [this] { return service_.NextDeadline(); },
    });
    auto port =
        GrpcPort::Open({.listen = {"127.0.0.1", 0}, .ports = std::nullopt, .certificates = nullptr},
                       {&service_}, read_, connections_, Clock::Real(), metrics_);
    EXPECT_TRUE(port.ok()) << port.status();
    port_ = *std::move(port);
    address_ = port_->address();
  }
  ~SessionServiceTest() override {
    coordinator_.Stop("the test ends");
    service_.CloseAll(absl::UnavailableError("the test ends"));
    port_->Shutdown(absl::Seconds(1));
  }

  std::shared_ptr<grpc::Channel> Channel() const { return ChannelTo(address_); }

  // Keeps the coordinator thread in a turn until the returned promise is fulfilled.
  std::promise<void> HoldCoordinator() {
    std::promise<void> release;
    auto held = std::make_shared<std::promise<void>>();
    auto wait = release.get_future().share();
    coordinator_.inbox().Push(Query([held, wait](const CoordinatorState&, absl::Time) {
      held->set_value();
      wait.wait();
    }));
    held->get_future().wait();
    return release;
  }

  // A value of the metrics' text, e.g. of "coordd_sessions ".
  double Metric(const std::string& name) const {
    const std::string text = "\n" + metrics_.Text();
    const size_t at = text.find("\n" + name + " ");
    return at == std::string::npos ? -1 : std::stod(text.substr(at + name.size() + 2));
  }

  const UnreadBounds bounds_;
  FakeClock clock_;
  prometheus::Registry registry_;
  ServerMetrics metrics_{registry_, clock_.Now()};
  Coordinator coordinator_{ServerOptions(), Epoch(7), clock_, metrics_};
  ReadBytes read_;
  ConnectionTable connections_;
  AuditLog audit_{metrics_, clock_};
  SessionService service_{clock_,
                          read_,
                          connections_,
                          coordinator_.inbox(),
                          metrics_,
                          audit_,
                          {.any_metrics_address = false, .unread = bounds_}};
  std::unique_ptr<GrpcPort> port_;
  HostPort address_;
};

TEST_F(SessionServiceTest, NumbersWhatItSendsWithoutGaps) {
  RawWorker worker(Channel());
  ASSERT_TRUE(worker.Join("train", "a", 1));
  const v1::CoordinatorMessage membership = worker.Read();
  EXPECT_TRUE(membership.has_membership()) << membership.DebugString();
  EXPECT_EQ(membership.epoch(), 7);
  EXPECT_EQ(membership.sequence(), 1);
  for (int64_t i = 2; i <= 300; ++i) {  // past one byte of varint
    ASSERT_TRUE(worker.Heartbeat());
    const v1::CoordinatorMessage ack = worker.Read();
    ASSERT_TRUE(ack.has_lease_ack());
    ASSERT_EQ(ack.sequence(), i);
  }
}

TEST_F(SessionServiceTest, EndsTheStreamOfAWorkerThatLeavesWithOk) {
  RawWorker worker(Channel());
  ASSERT_TRUE(worker.Join("train", "a", 1));
  ASSERT_TRUE(worker.Read().has_membership());
  ASSERT_TRUE(worker.Leave());
  const grpc::Status status = worker.Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST_F(SessionServiceTest, TellsARefusalAlsoToAWorkerThatHasStoppedSending) {
  RawWorker worker(Channel());
  v1::WorkerMessage join = JoinMessage("train", "a", 1);
  join.mutable_join()->mutable_versions()->set_protocol(99);
  ASSERT_TRUE(worker.Send(join));
  worker.CloseSendingSide();
  const grpc::Status status = worker.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("99"));
}

TEST_F(SessionServiceTest, RefusesAFirstMessageOtherThanJoin) {
  RawWorker worker(Channel());
  ASSERT_TRUE(worker.Heartbeat());
  const grpc::Status status = worker.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("Join"));
}

TEST_F(SessionServiceTest, WritesWhoseSessionHasSaidWhatItMayNot) {
  RawWorker worker(Channel());
  ASSERT_TRUE(worker.Join("job", "w", 1));
  testing::internal::CaptureStderr();
  ASSERT_TRUE(worker.Join("job", "w", 1));
  while (worker.Read().body_case() != v1::CoordinatorMessage::BODY_NOT_SET) continue;
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::ContainsRegex("the session of [a-z0-9:]*127.0.0.1:[0-9]+ has said what it "
                                     "may not: a second Join in one session"));
}

TEST_F(SessionServiceTest, AnswersWhatItCannotParse) {
  const ByteReply reply =
      CallWithBytes(Channel(), kSession, {"\xff\xff\xff garbage"}, /*half_close=*/false);
  EXPECT_EQ(reply.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(reply.status.error_message(), HasSubstr("cannot be parsed"));
}

TEST_F(SessionServiceTest, EndsAStreamThatSaysNothingAtAll) {
  EXPECT_TRUE(CallWithBytes(Channel(), kSession, {}, /*half_close=*/true).status.ok());
}

TEST_F(SessionServiceTest, ClosesAStreamWhoseJoinDoesNotCome) {
  RawWorker silent(Channel());
  RawWorker joined(Channel());
  ASSERT_TRUE(joined.Join("train", "a", 1));
  ASSERT_TRUE(joined.Read().has_membership());
  auto end = std::async(std::launch::async, [&] { return silent.Finish(); });
  while (end.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready)
    clock_.Advance(absl::Milliseconds(500));
  const grpc::Status status = end.get();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("no Join came within 5s"));
}

TEST_F(SessionServiceTest, ReadsNoFurtherWhileTheInboxIsFull) {
  RawWorker worker(Channel());
  ASSERT_TRUE(worker.Join("train", "a", 1));
  ASSERT_TRUE(worker.Read().has_membership());
  std::promise<void> release = HoldCoordinator();
  constexpr int kMessages = 2 * static_cast<int>(Inbox::kCapacity);
  auto sender = std::async(std::launch::async, [&] {
    // Brings no answer.
    v1::WorkerMessage unknown;
    unknown.mutable_tensors_withdrawn()->add_names("never submitted");
    for (int i = 0; i < kMessages; ++i) {
      if (!worker.Send(unknown)) return false;
    }
    return worker.Heartbeat();
  });
  while (Metric("coordd_reads_withheld_total") < 1) std::this_thread::yield();
  // The one that found no room was read, but none behind it.
  EXPECT_LE(Metric("coordd_messages_received_total"), 2.0 + Inbox::kCapacity);
  release.set_value();
  // The last of all is answered, so none was lost in front of it.
  EXPECT_TRUE(worker.Read().has_lease_ack());
  EXPECT_TRUE(sender.get());
  EXPECT_EQ(Metric("coordd_messages_received_total"), 2.0 + kMessages);
}

TEST_F(SessionServiceTest, AnswersWhoSaysMoreThanItMayLeaveUnreadAndThenReads) {
  RawWorker worker(Channel());
  ASSERT_TRUE(worker.Join("train", "a", 1));
  ASSERT_TRUE(worker.Read().has_membership());
  // Behind a long turn they come faster than they are written.
  std::promise<void> release = HoldCoordinator();
  constexpr int kMessages = 2 * static_cast<int>(OutboxBounds().messages);
  auto sender = std::async(std::launch::async, [&] {
    for (int i = 0; i < kMessages; ++i) {
      if (!worker.Heartbeat()) return false;
    }
    return true;
  });
  while (Metric("coordd_reads_withheld_total") < 1) std::this_thread::yield();
  release.set_value();
  for (int i = 0; i < kMessages; ++i) ASSERT_TRUE(worker.Read().has_lease_ack()) << i;
  EXPECT_TRUE(sender.get());
}

TEST_F(SessionServiceTest, DropsAWorkerThatDoesNotRead) {
  RawWorker worker(Channel());
  ASSERT_TRUE(worker.Join("train", "a", 1));
  ASSERT_TRUE(worker.Read().has_membership());
  auto message = std::make_shared<v1::CoordinatorMessage>();
  message->mutable_shutdown()->set_reason(std::string(1 << 20, 'x'));
  const Deliver deliver{{SessionId(1)}, message};
  // What fits into the sockets' buffers goes out besides what the outbox holds.
  for (int i = 0; i < 200; ++i) service_.CarryOut(deliver);
  EXPECT_EQ(Metric("coordd_outbox_messages"), 0);
  const grpc::Status status = worker.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("unread"));
}

TEST_F(SessionServiceTest, CutsAWorkerThatDoesNotReadNotEvenItsEnd) {
  RawWorker worker(Channel());
  ASSERT_TRUE(worker.Join("train", "a", 1));
  ASSERT_TRUE(worker.Read().has_membership());
  auto message = std::make_shared<v1::CoordinatorMessage>();
  message->mutable_shutdown()->set_reason(std::string(1 << 20, 'x'));
  for (int i = 0; i < 200; ++i) service_.CarryOut(Deliver{{SessionId(1)}, message});
  while (Metric("coordd_sessions") > 0) {
    clock_.Advance(absl::Milliseconds(100));
    std::this_thread::yield();
  }
}

// Sessions of one caller, of which some read nothing.
class SessionsOfOneTest : public SessionServiceTest {
 protected:
  static constexpr int kWorkers = 5;

  // What a session leaves unread goes into the sockets' buffers first, which are a few mebibytes.
  SessionsOfOneTest() : SessionServiceTest({.of_one = 40 << 20}) {
    for (int i = 0; i < kWorkers; ++i) {
      workers_.push_back(std::make_unique<RawWorker>(Channel()));
      EXPECT_TRUE(workers_[i]->Join(absl::StrCat("job", i), "a", 1));
      EXPECT_TRUE(workers_[i]->Read().has_membership());
    }
  }

  // To all but the last one.
  void Tell(int mebibytes) {
    auto message = std::make_shared<v1::CoordinatorMessage>();
    message->mutable_shutdown()->set_reason(std::string(1 << 20, 'x'));
    for (int i = 0; i < mebibytes; ++i)
      for (int64_t session = 1; session < kWorkers; ++session)
        service_.CarryOut(Deliver{{SessionId(session)}, message});
  }
  RawWorker& last() { return *workers_.back(); }

  std::vector<std::unique_ptr<RawWorker>> workers_;
};

TEST_F(SessionsOfOneTest, WhoReadsNothingIsNotReadWhileTogetherTheyHaveMuch) {
  constexpr int kMebibytes = 16, kHeartbeats = 100;  // 64 of 40, less than 21 each
  Tell(kMebibytes);
  const double before = Metric("coordd_messages_received_total");
  // The next message is awaited already, and the ones behind it are not.
  ASSERT_TRUE(workers_[0]->Heartbeat());
  while (Metric("coordd_messages_received_total") < before + 1) std::this_thread::yield();
  for (int i = 0; i < kHeartbeats; ++i) ASSERT_TRUE(workers_[0]->Heartbeat());
  for (int i = 0; i < kHeartbeats; ++i) {
    ASSERT_TRUE(last().Heartbeat());
    ASSERT_TRUE(last().Read().has_lease_ack());  // who reads is answered
  }
  EXPECT_EQ(Metric("coordd_messages_received_total"), before + 1 + kHeartbeats);
  for (int i = 0; i < kMebibytes; ++i) ASSERT_TRUE(workers_[0]->Read().has_shutdown());
  for (int i = 0; i < kHeartbeats + 1; ++i) ASSERT_TRUE(workers_[0]->Read().has_lease_ack());
}

TEST_F(SessionsOfOneTest, AtThreeTimesThatTheyAreEndedAndWhoReadsIsNot) {
  Tell(60);  // less than 64 each
  EXPECT_GE(Metric("coordd_sessions_dropped_total{reason=\"outbox_full\"}"), 1);
  ASSERT_TRUE(last().Heartbeat());
  EXPECT_TRUE(last().Read().has_lease_ack());
}

TEST_F(SessionServiceTest, ForgetsAWorkerThatVanishes) {
  {
    RawWorker worker(Channel());
    ASSERT_TRUE(worker.Join("train", "a", 1));
    ASSERT_TRUE(worker.Read().has_membership());
    worker.Vanish();
    while (Metric("coordd_sessions") > 0) std::this_thread::yield();
  }
  RawWorker again(Channel());
  ASSERT_TRUE(again.Join("train", "a", 1));
  EXPECT_TRUE(again.Read().has_membership());
  EXPECT_EQ(again.generation, 2);
}

TEST_F(SessionServiceTest, ManyMembersGetTheSameMessageEachUnderItsOwnSequence) {
  constexpr int kWorkers = 16;
  std::vector<std::unique_ptr<RawWorker>> workers;
  for (int i = 0; i < kWorkers; ++i) {
    workers.push_back(std::make_unique<RawWorker>(Channel()));
    ASSERT_TRUE(workers.back()->Join("train", absl::StrCat("worker", i), kWorkers));
  }
  for (auto& worker : workers)
    ASSERT_TRUE(worker->ReadUntil(v1::CoordinatorMessage::kMembership).has_membership());
  workers[0]->Heartbeat();
  ASSERT_TRUE(workers[0]->Read().has_lease_ack());  // the first is one ahead of the others
  for (auto& worker : workers) ASSERT_TRUE(worker->Ready("gradient", 4));
  for (auto& worker : workers) {
    const v1::CoordinatorMessage plan = worker->ReadUntil(v1::CoordinatorMessage::kPlan);
    ASSERT_EQ(plan.plan().batches_size(), 1);
    EXPECT_EQ(plan.plan().batches(0).tensors(0), "gradient");
  }
}

}  // namespace
}  // namespace coordd
