// A whole coordd on state that is slow, fails, is lost or was written by an earlier one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "server/store/state_store_memory.h"
#include "tests/support/temp_directory.h"
#include "tests/support/test_server.h"

namespace coordd {
namespace {

using testing::HasSubstr;

// A disk that answers when the test lets it.
struct Gate {
  Mutex mu;
  CondVar changed;
  bool open ABSL_GUARDED_BY(mu) = true;
  int waiting ABSL_GUARDED_BY(mu) = 0;
  absl::Status answer ABSL_GUARDED_BY(mu);
  std::function<void(absl::Status)> lost;

  void Set(bool is_open, absl::Status next = absl::OkStatus()) {
    MutexLock lock(&mu);
    open = is_open;
    answer = std::move(next);
    changed.NotifyAll();
  }
  void AwaitWaiting() {
    MutexLock lock(&mu);
    const bool waits = Clock::Real().Await(
        &mu, &changed, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return waiting > 0; },
        Clock::Real().Now() + absl::Minutes(1));
    EXPECT_TRUE(waits);
  }
  absl::Status Pass() {
    MutexLock lock(&mu);
    ++waiting;
    changed.NotifyAll();
    Clock::Real().Await(
        &mu, &changed, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return open; },
        absl::InfiniteFuture());
    --waiting;
    return answer;
  }
};

class GatedStore final : public StateStore {
 public:
  explicit GatedStore(std::shared_ptr<Gate> gate)
      : gate_(std::move(gate)),
        inner_(std::make_shared<StateMemory>(), StateStoreOptions{.new_cluster_id = "c0ffee"}) {}
  absl::StatusOr<StoredState> Open(std::function<void(absl::Status)> lost) override {
    gate_->lost = lost;
    return inner_.Open(std::move(lost));
  }
  absl::Status Commit(absl::Span<const StateWrite> writes) override {
    const absl::Status status = gate_->Pass();
    return status.ok() ? inner_.Commit(writes) : status;
  }
  std::string name() const override { return "gated"; }

 private:
  const std::shared_ptr<Gate> gate_;
  MemoryStateStore inner_;
};

class CoordServerStateTest : public testing::Test {
 protected:
  CoordServerStateTest() {
    OpenedState state;
    state.loss = std::make_shared<StateLoss>();
    state.store = std::make_unique<GatedStore>(gate_);
    auto loss = state.loss;
    const auto stored = state.store->Open([loss](const absl::Status& why) { loss->Raise(why); });
    state.restored = *ParseRecords(*stored);
    auto server =
        CoordServer::Start(TestServerOptions(), std::move(state), Clock::Real(), registry_);
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  ~CoordServerStateTest() override { gate_->Set(true); }

  std::shared_ptr<grpc::Channel> Channel() { return ChannelTo(server_->listen_address()); }
  HttpAnswer Get(const std::string& path) { return HttpGet(*server_->http_address(), path); }

  const std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();
  prometheus::Registry registry_;
  std::unique_ptr<CoordServer> server_;
};

TEST_F(CoordServerStateTest, ASlowDiskHoldsUpNothingButNewGenerations) {
  RawWorker running(Channel());
  ASSERT_TRUE(running.Join("running", "a", 1));
  ASSERT_TRUE(running.ReadUntil(v1::CoordinatorMessage::kMembership).has_membership());
  gate_->Set(false);
  RawWorker waiting(Channel());
  ASSERT_TRUE(waiting.Join("waiting", "b", 1));
  gate_->AwaitWaiting();
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(running.Heartbeat());
    EXPECT_TRUE(running.ReadUntil(v1::CoordinatorMessage::kLeaseAck).has_lease_ack());
  }
  ASSERT_TRUE(running.Ready("gradient", 10));
  EXPECT_TRUE(running.ReadUntil(v1::CoordinatorMessage::kPlan).has_plan());
  EXPECT_THAT(Get("/v1/jobs").body, HasSubstr("\"gathering\""));
  gate_->Set(true);
  EXPECT_TRUE(waiting.ReadUntil(v1::CoordinatorMessage::kMembership).has_membership());
}

TEST_F(CoordServerStateTest, AFullDiskIsSeenAndGoneWhenThereIsRoom) {
  gate_->Set(true, absl::ResourceExhaustedError("state.db: the disk is full"));
  RawWorker worker(Channel());
  ASSERT_TRUE(worker.Join("train", "a", 1));
  std::string told;
  while (told.find("the disk is full") == std::string::npos) {
    const v1::CoordinatorMessage message = worker.ReadUntil(v1::CoordinatorMessage::kWaiting);
    ASSERT_TRUE(message.has_waiting());
    told = message.waiting().reason();
  }
  const HttpAnswer ready = Get("/readyz");
  EXPECT_EQ(ready.status, 503);
  EXPECT_THAT(ready.body, HasSubstr("the disk is full"));
  EXPECT_THAT(Get("/metrics").body, HasSubstr("coordd_state_writable 0"));
  EXPECT_EQ(Get("/healthz").status, 200);
  gate_->Set(true);
  const v1::CoordinatorMessage formed = worker.ReadUntil(v1::CoordinatorMessage::kMembership);
  EXPECT_TRUE(formed.has_membership());
  EXPECT_GT(formed.generation(), 1);  // the numbers that were not stored are not used
  EXPECT_EQ(Get("/readyz").status, 200);
  EXPECT_THAT(Get("/metrics").body, HasSubstr("coordd_state_writable 1"));
}

TEST_F(CoordServerStateTest, SaysThatItsStateWasTakenOver) {
  EXPECT_TRUE(server_->state_loss().why().ok());
  gate_->lost(absl::FailedPreconditionError("another coordd leads"));
  gate_->lost(absl::FailedPreconditionError("said twice"));
  EXPECT_THAT(std::string(server_->state_loss().why().message()), "another coordd leads");
}

CoordServerOptions OnDisk(const TempDirectory& directory) {
  CoordServerOptions options = TestServerOptions();
  options.store.kind = StatePlace::Kind::kSqlite;
  options.store.directory = directory / "state";
  return options;
}

TEST(CoordServerRestart, GoesOnFromItsState) {
  const TempDirectory directory;
  int64_t epoch = 0;
  {
    TestServer server(OnDisk(directory));
    TwoWorkers job(server);
    EXPECT_EQ(job.a.generation, 1);
    epoch = job.a.epoch;
    EXPECT_EQ(epoch, 1);
    const HttpAnswer answer = server.Get("/v1/jobs");
    EXPECT_THAT(answer.body, HasSubstr("\"store\":\"sqlite:" + directory.path()));
    server->Stop("the test stops it");
    // Gone with Stop, though the object is still there.
    TestServer next(OnDisk(directory));
    EXPECT_THAT(next.Get("/metrics").body, HasSubstr("coordd_epoch 2"));
  }
  TestServer server(OnDisk(directory));
  TwoWorkers job(server);
  EXPECT_EQ(job.a.epoch, epoch + 2);
  EXPECT_EQ(job.a.generation, 2);
}

TEST(CoordServerRestart, TwoOnOneDirectoryAreRefused) {
  const TempDirectory directory;
  TestServer first(OnDisk(directory));
  prometheus::Registry registry;
  const auto second = CoordServer::Start(OnDisk(directory), Clock::Real(), registry);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(second.status().message()),
              testing::AllOf(HasSubstr(directory.path()), HasSubstr("pid")));
}

}  // namespace
}  // namespace coordd
