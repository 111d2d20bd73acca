// What workers take that have joined and are in no generation yet, of whom, and until when.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/job/coordinator_state.h"
#include "server/job/job_workers.h"
#include "server/model/byte_budget.h"
#include "tests/server/support/builders.h"
#include "tests/support/start_time.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using testing::HasSubstr;
using testing::MatchesRegex;
using Code = absl::StatusCode;

// There is room for 256 KiB of one owner, either way that it is counted.
class WaitingJoinsTest : public testing::Test {
 protected:
  WaitingJoinsTest() {
    options_.max_workers_per_job = 64;
    options_.max_bytes_per_owner = 512 << 10;
    Restart();
  }

  void Restart() { state_ = std::make_unique<CoordinatorState>(options_, Epoch{1}); }

  Effects Do(const Inbound& in) {
    Effects effects;
    state_->Step(in, now_, effects);
    state_->Tick(now_, effects);
    EXPECT_THAT(state_->CheckConsistency(), IsOk());
    return effects;
  }

  // A Join of about 1 KB on the wire, of 2.4 KB in memory.
  v1::Join LargeJoin(const std::string& job) {
    ++session_;
    v1::Join join = JoinOf(absl::StrCat("w", session_), absl::StrCat("node", session_));
    join.set_job(job);
    for (int device = 0; device < 8; ++device) {
      v1::Device& gpu = *join.add_devices();
      gpu.set_uuid(absl::StrCat("GPU-", session_, "-", device, std::string(60, 'u')));
      gpu.set_model(std::string(40, 'm'));
      gpu.set_kind(v1::MEMORY_KIND_CUDA);
    }
    return join;
  }
  absl::Status Join(const std::string& name, v1::Join join, int32_t min_workers) {
    join.mutable_limits()->set_min_workers(min_workers);
    v1::WorkerMessage message;
    *message.mutable_join() = std::move(join);
    const Caller caller{.identity = {Role::kWorker, name}, .peer = "ipv4:10.0.0.7:4711"};
    const Effects effects =
        Do(SessionMessage{SessionId{session_}, message, std::make_shared<const Caller>(caller)});
    for (const Outgoing& out : effects.outgoing) {
      const auto* close = std::get_if<CloseSession>(&out);
      if (close != nullptr && close->session == SessionId{session_}) return close->status;
    }
    return absl::OkStatus();
  }
  // How many of those who come to this job until one is refused wait in it.
  int Fill(const std::string& job, const std::string& name = "*") {
    for (int in = 0; in < 1000; ++in) {
      const absl::Status status = Join(name, LargeJoin(job), /*min_workers=*/64);
      if (status.ok()) continue;
      EXPECT_EQ(status.code(), Code::kResourceExhausted) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("that wait for a generation may take"));
      return in;
    }
    return 1000;
  }

  ServerOptions options_;
  absl::Time now_ = kStart;
  int64_t session_ = 0;
  std::unique_ptr<CoordinatorState> state_;
};

TEST_F(WaitingJoinsTest, TakeWhatTheirOwnerMayHaveAndNoMore) {
  const int in = Fill("one");
  EXPECT_GT(in, 15);
  EXPECT_LT(in, 64);
  EXPECT_EQ(Fill("two"), 0) << "jobs of one owner have it together";
  EXPECT_EQ(Fill("of-bob", "of-bob"), in) << "another owner has his own";
}

TEST_F(WaitingJoinsTest, SayWhatTheyTakeAndOfWhat) {
  Fill("one");
  v1::Join join = LargeJoin("one");
  join.mutable_limits()->set_min_workers(64);
  const absl::Status refused = Join("*", join, 64);
  EXPECT_THAT(std::string(refused.message()),
              MatchesRegex("this worker takes [0-9]+ bytes while it waits, and the workers of its "
                           "owner's jobs that wait for a generation may take 256 KiB together \\(4 "
                           "KiB for each of --max-workers-per-job, or half of "
                           "--max-bytes-per-owner if that is more\\)"));
}

TEST_F(WaitingJoinsTest, GiveItBackWhenTheyGo) {
  const int in = Fill("one");
  for (int64_t session = 1; session <= in; ++session) Do(SessionEnded{SessionId{session}, "gone"});
  EXPECT_EQ(Fill("two"), in);
}

TEST_F(WaitingJoinsTest, GiveItBackWhenTheyAreInAGeneration) {
  const int in = Fill("one");
  for (int i = 0; i < 2 * in; ++i) {
    const std::string job = absl::StrCat("alone", i);
    EXPECT_EQ(Join("*", LargeJoin(job), 1).code(), Code::kResourceExhausted)
        << "as long as one waits";
  }
  for (int64_t session = 1; session <= in; ++session) Do(SessionEnded{SessionId{session}, "gone"});
  for (int i = 0; i < 2 * in; ++i) {
    ASSERT_THAT(Join("*", LargeJoin(absl::StrCat("alone", i)), 1), IsOk());
    now_ += options_.settling_window;
    Effects effects;
    state_->Tick(now_, effects);
  }
  EXPECT_EQ(Fill("two"), in) << "members do not wait";
}

TEST_F(WaitingJoinsTest, GiveItBackWhenTheyAreRefused) {
  for (int i = 0; i < 200; ++i) {
    v1::Join wrong = LargeJoin("one");
    if (i > 0) wrong.set_token("guess");
    const absl::Status status = Join("*", wrong, 64);
    if (i == 0) ASSERT_THAT(status, IsOk());
    if (i > 0) ASSERT_NE(status.code(), Code::kResourceExhausted) << status;
  }
  EXPECT_GT(Fill("one"), 14);
}

TEST_F(WaitingJoinsTest, GiveItBackWhenTheyComeAgain) {
  const int in = Fill("one");
  v1::Join last = LargeJoin("one");
  last.set_worker_id("w1");
  *last.mutable_host() = JoinOf("w1", "node1").host();
  EXPECT_THAT(Join("*", last, 64), IsOk()) << "it takes its own place";
  EXPECT_EQ(Fill("one"), 0);
  EXPECT_GT(in, 0);
}

// Whichever way they go: what is counted is nothing in the end.
TEST_F(WaitingJoinsTest, AreCountedUntilTheyDoNotWait) {
  const auto budget = std::make_shared<ByteBudget>(1 << 20);
  JobWorkers workers;
  workers.Bind(budget);
  const auto add = [&](int64_t session) {
    JobWorker worker;
    worker.join = LargeJoin("one");
    workers.Add(SessionId{session}, std::move(worker));
    return budget->joins()->used();
  };
  const int64_t one = add(1);
  EXPECT_GT(one, 6000);
  EXPECT_EQ(add(2), 2 * one);
  workers.Enter(SessionId{1}, Generation{1}, Place{.rank = Rank{0}, .size = 1}, {}, now_);
  EXPECT_EQ(budget->joins()->used(), one) << "it is a member";
  workers.at(SessionId{1}).AwaitNext();
  ASSERT_THAT(workers.TakeReport(workers.at(SessionId{1}), /*is_whole=*/true), IsOk());
  EXPECT_EQ(budget->joins()->used(), one) << "it was one, and has a claim on a place";
  workers.Remove(SessionId{2});
  EXPECT_EQ(budget->joins()->used(), 0);
  workers.Remove(SessionId{1});
  EXPECT_EQ(add(3), one);
  workers.Disband();
  EXPECT_EQ(budget->joins()->used(), 0);
  EXPECT_EQ(add(4), one);
  workers.Bind(nullptr);
  EXPECT_EQ(budget->joins()->used(), 0);
}

// As coordd is installed: nobody who is honest is refused.
TEST_F(WaitingJoinsTest, HaveRoomForLargeJobs) {
  options_ = ServerOptions();
  Restart();
  for (int i = 0; i < 10000; ++i) {
    v1::WorkerMessage message;
    v1::Join& join = *message.mutable_join() = LargeJoin("large");
    join.mutable_limits()->set_min_workers(20000);
    Effects effects;
    state_->Step(SessionMessage{SessionId{session_}, message, nullptr}, now_, effects);
    for (const Outgoing& out : effects.outgoing)
      ASSERT_EQ(std::get_if<CloseSession>(&out), nullptr) << i;
  }
}

}  // namespace
}  // namespace coordd
