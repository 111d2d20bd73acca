// Threads that wait for a tensor and drive the data plane themselves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/thread.h"
#include "common/protocol/store_memory.h"
#include "tests/support/fake_clock.h"
#include "tests/support/status_matchers.h"
#include "tests/worker/support/held_backend.h"
#include "tests/worker/support/rank_executor.h"
#include "worker/execute/driver_seat.h"

namespace coordd {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

// An executor that completes the Works of batches that went well, as Completion does, and keeps the
// others for the test, as WorkerState does.
class SeatRank {
 public:
  SeatRank(BatchContext context, std::unique_ptr<CollectiveBackend> backend, Clock& clock)
      : context_(std::move(context)),
        clock_(clock),
        executor_({.polling_threads = context_.size, .cores = 2}, std::move(backend), clock,
                  [this](std::unique_ptr<BatchJob> batch) { End(std::move(batch)); }) {}

  void Start(Store& store) {
    ASSERT_THAT(executor_.Start(GroupLayout::OneNode(Rank{context_.rank}, context_.size), store,
                                absl::InfiniteFuture()),
                IsOk());
  }
  // After Start, and while nothing is launched: the executor's thread has gone to sleep.
  void AwaitFreeSeat() {
    while (executor_.seat()->taken()) std::this_thread::yield();
  }

  std::shared_ptr<Work> NewWork(const std::string& name) {
    return std::make_shared<Work>(Spec(CollectiveKind::kAllreduce, name, {4}), clock_,
                                  executor_.seat());
  }
  // A sum of `values`, in place, as the batch of a lane of its own.
  void Launch(int32_t lane, int64_t sequence, std::shared_ptr<Work> work,
              std::vector<float>& values) {
    TensorJob job;
    job.work = std::move(work);
    job.input = job.output = reinterpret_cast<std::byte*>(values.data());
    std::vector<TensorJob> jobs;
    jobs.push_back(std::move(job));
    executor_.Launch(std::make_unique<BatchJob>(context_, LaneId{lane}, sequence, std::move(jobs)));
  }
  absl::Status LaunchAndWait(int32_t lane, int64_t sequence, std::vector<float>& values) {
    const std::shared_ptr<Work> work = NewWork(absl::StrCat("t", lane));
    const Work::Waiter waiter(*work);
    Launch(lane, sequence, work, values);
    return work->Wait(absl::InfiniteFuture());
  }

  Executor& executor() { return executor_; }
  // By which thread the last batch was ended.
  std::thread::id ended_by() {
    MutexLock lock(&mu_);
    return ended_by_;
  }
  std::unique_ptr<BatchJob> TakeFailed() {
    return std::move(failed_.TakeAll(absl::InfiniteFuture()).at(0));
  }

 private:
  void End(std::unique_ptr<BatchJob> batch) {
    {
      MutexLock lock(&mu_);
      ended_by_ = std::this_thread::get_id();
    }
    if (!batch->status.ok()) {
      failed_.PushUnbounded(std::move(batch));
      return;
    }
    batch->Unpack();
    TensorJob& tensor = batch->tensors().front();
    tensor.work->Complete(absl::OkStatus(), std::move(tensor.result));
  }

  const BatchContext context_;
  Clock& clock_;
  Mutex mu_;
  std::thread::id ended_by_ ABSL_GUARDED_BY(mu_);
  BoundedQueue<std::unique_ptr<BatchJob>> failed_{64, Clock::Real()};
  Executor executor_;
};

class ExecutorSeat : public ::testing::Test {
 protected:
  void SetUp() override {
    rank_.Start(store_);
    rank_.AwaitFreeSeat();
  }
  // A thread that waits for a batch on lane 0, seen to drive.
  std::thread Sit(absl::Time deadline, absl::Status& result) {
    work_ = rank_.NewWork("t0");
    std::thread caller = StartThread("caller", [this, deadline, &result] {
      const Work::Waiter waiter(*work_);
      rank_.Launch(0, 1, work_, values_);
      result = work_->Wait(deadline);
    });
    held_.AwaitDriver(caller.get_id());
    return caller;
  }

  InMemoryStore store_;
  HeldBatches held_;
  FakeClock clock_;
  SeatRank rank_{{Generation{1}, 0, 1, {}, nullptr}, std::make_unique<HeldBackend>(held_), clock_};
  std::vector<float> values_ = std::vector<float>(4, 1.0f);
  std::vector<float> others_ = std::vector<float>(4, 2.0f);
  std::shared_ptr<Work> work_;
  absl::Status result_ = absl::UnknownError("the wait has not returned");
};

TEST_F(ExecutorSeat, ACallerDrivesItsOwnTensorToItsEnd) {
  std::thread caller = Sit(absl::InfiniteFuture(), result_);
  const std::thread::id id = caller.get_id();
  held_.Release(LaneId{0});
  caller.join();
  EXPECT_THAT(result_, IsOk());
  EXPECT_EQ(rank_.ended_by(), id);
  EXPECT_FALSE(rank_.executor().seat()->taken());
}

CollectiveArgs Barrier(int32_t lane) {
  CollectiveArgs args;
  args.kind = CollectiveKind::kBarrier;
  args.lane = LaneId{lane};
  return args;
}

TEST_F(ExecutorSeat, WhoBeginsAMessageLaunchesItAndItsWaiterDrivesIt) {
  const std::shared_ptr<Work> work = rank_.NewWork("message");
  std::thread caller = StartThread("caller", [&] {
    ASSERT_TRUE(rank_.executor().TryLaunchMessage(
        Barrier(5), [work](absl::Status status) { work->Complete(std::move(status), {}); }));
    rank_.executor().DriveMessages();
    EXPECT_EQ(held_.AwaitLaunch(LaneId{5}), std::this_thread::get_id());
    EXPECT_THAT(work->Wait(absl::InfiniteFuture()), IsOk());
  });
  held_.Release(LaneId{5});
  caller.join();
  // What ends at once ends here, with nobody who waits.
  for (int i = 0; i < 3; ++i) {
    std::atomic<bool> ended = false;
    held_.Release(LaneId{6});
    ASSERT_TRUE(rank_.executor().TryLaunchMessage(
        Barrier(6), [&](absl::Status status) { ended = status.ok(); }));
    rank_.executor().DriveMessages();
    EXPECT_TRUE(ended);
  }
}

TEST_F(ExecutorSeat, AMessageThatNobodyWaitsForIsTheExecutorsThreads) {
  const std::thread::id self = std::this_thread::get_id();
  for (int i = 0; i < 2; ++i) {
    std::atomic<bool> ended = false;
    ASSERT_TRUE(rank_.executor().TryLaunchMessage(
        Barrier(5), [&](absl::Status status) { ended = status.ok(); }));
    rank_.executor().DriveMessages();
    held_.AwaitDriverOtherThan(self);
    held_.Release(LaneId{5});
    while (!ended) std::this_thread::yield();
    rank_.AwaitFreeSeat();
  }
}

TEST_F(ExecutorSeat, ACallerDrivesWhatOthersLaunchMeanwhile) {
  std::thread caller = Sit(absl::InfiniteFuture(), result_);
  const std::shared_ptr<Work> other = rank_.NewWork("t1");
  rank_.Launch(1, 1, other, others_);
  EXPECT_EQ(held_.AwaitLaunch(LaneId{1}), caller.get_id());
  held_.Release(LaneId{1});
  EXPECT_THAT(other->Wait(absl::InfiniteFuture()), IsOk());
  EXPECT_FALSE(work_->done());
  held_.Release(LaneId{0});
  caller.join();
  EXPECT_THAT(result_, IsOk());
}

TEST_F(ExecutorSeat, WhatIsLeftWhenACallerIsDoneIsTheExecutorsThreads) {
  std::thread caller = Sit(absl::InfiniteFuture(), result_);
  const std::thread::id id = caller.get_id();
  const std::shared_ptr<Work> other = rank_.NewWork("t1");
  rank_.Launch(1, 1, other, others_);
  held_.AwaitLaunch(LaneId{1});
  held_.Release(LaneId{0});
  caller.join();
  EXPECT_THAT(result_, IsOk());
  held_.AwaitDriverOtherThan(id);
  held_.Release(LaneId{1});
  EXPECT_THAT(other->Wait(absl::InfiniteFuture()), IsOk());
}

TEST_F(ExecutorSeat, ACallerLeavesTheSeatAtItsDeadline) {
  std::thread caller = Sit(clock_.Now() + absl::Minutes(1), result_);
  const std::thread::id id = caller.get_id();
  clock_.Advance(absl::Minutes(1));
  caller.join();
  EXPECT_THAT(result_, StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("still running")));
  held_.AwaitDriverOtherThan(id);
  held_.Release(LaneId{0});
  EXPECT_THAT(work_->Wait(absl::InfiniteFuture()), IsOk());
}

TEST_F(ExecutorSeat, AnAbortGetsACallerOutOfTheSeat) {
  std::thread caller = Sit(absl::InfiniteFuture(), result_);
  rank_.executor().Abort();
  // The batch has ended; what its tensor ends with is decided elsewhere, and takes its time.
  const std::unique_ptr<BatchJob> failed = rank_.TakeFailed();
  EXPECT_THAT(failed->status, StatusIs(absl::StatusCode::kAborted, HasSubstr("aborted")));
  rank_.executor().Stop();
  EXPECT_FALSE(work_->done());
  work_->Complete(absl::AbortedError("rank 1 was lost"), {});
  caller.join();
  EXPECT_THAT(result_, StatusIs(absl::StatusCode::kAborted, "rank 1 was lost"));
}

TEST_F(ExecutorSeat, AStopGetsACallerOutOfTheSeat) {
  std::thread caller = Sit(absl::InfiniteFuture(), result_);
  rank_.executor().Stop();
  EXPECT_FALSE(rank_.TakeFailed()->status.ok());
  work_->Complete(absl::CancelledError("shut down"), {});
  caller.join();
  EXPECT_THAT(result_, StatusIs(absl::StatusCode::kCancelled, "shut down"));
  // The seat is the dead executor's: nobody gets it.
  EXPECT_THAT(rank_.NewWork("late")->Wait(absl::InfinitePast()),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("still running")));
}

TEST_F(ExecutorSeat, AThreadThatGivesUpLeavesItsBatchToTheExecutor) {
  const std::shared_ptr<Work> work = rank_.NewWork("t0");
  {
    // Counted on, it never comes.
    const Work::Waiter waiter(*work);
    rank_.Launch(0, 1, work, values_);
  }
  EXPECT_NE(held_.AwaitLaunch(LaneId{0}), std::this_thread::get_id());
  held_.Release(LaneId{0});
  EXPECT_THAT(work->Wait(absl::InfiniteFuture()), IsOk());
}

TEST_F(ExecutorSeat, ABatchThatComesLaterGoesToTheThreadThatWaits) {
  const std::shared_ptr<Work> work = rank_.NewWork("t0");
  std::thread caller = StartThread("caller", [&] { result_ = work->Wait(absl::InfiniteFuture()); });
  while (!work->has_waiter()) std::this_thread::yield();
  rank_.Launch(0, 1, work, values_);
  EXPECT_EQ(held_.AwaitLaunch(LaneId{0}), caller.get_id());
  held_.Release(LaneId{0});
  caller.join();
  EXPECT_THAT(result_, IsOk());
}

TEST_F(ExecutorSeat, AForkedChildDoesNotTouchTheSeat) {
  std::thread caller = Sit(absl::InfiniteFuture(), result_);
  const std::shared_ptr<Work> other = rank_.NewWork("t1");
  const pid_t child = fork();
  if (child == 0) {
    const bool refused = absl::IsFailedPrecondition(work_->Wait(absl::InfiniteFuture())) &&
                         absl::IsFailedPrecondition(other->Wait(absl::InfiniteFuture()));
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  held_.Release(LaneId{0});
  caller.join();
  EXPECT_THAT(result_, IsOk());
}

// Two ranks over in-process memory, each with several threads that wait for tensors of their own
// and some that nobody waits for at once.
TEST(ExecutorSeats, ServeSeveralCallersAtOnce) {
  constexpr int kRanks = 2, kRounds = 200;
  constexpr int32_t kCallers = 3;
  InProcessNetwork network(kRanks);
  InMemoryStore store;
  std::vector<std::unique_ptr<SeatRank>> ranks;
  std::vector<std::thread> starters;
  for (int32_t r = 0; r < kRanks; ++r) {
    ranks.push_back(std::make_unique<SeatRank>(
        BatchContext{Generation{1}, r, kRanks, {}, nullptr},
        std::make_unique<HostBackend>(std::make_unique<InProcessTransport>(network)),
        Clock::Real()));
    starters.push_back(
        StartThread("start", [&rank = *ranks.back(), &store] { rank.Start(store); }));
  }
  for (std::thread& starter : starters) starter.join();
  std::vector<std::thread> callers;
  for (int32_t r = 0; r < kRanks; ++r) {
    for (int32_t lane = 0; lane < kCallers; ++lane) {
      callers.push_back(StartThread("caller", [&rank = *ranks[static_cast<size_t>(r)], lane] {
        for (int64_t sequence = 1; sequence <= kRounds; sequence += 2) {
          std::vector<float> first(4, 1.0f), second(4, 2.0f);
          const std::shared_ptr<Work> unwaited = rank.NewWork(absl::StrCat("async", lane));
          rank.Launch(lane, sequence, unwaited, first);
          EXPECT_THAT(rank.LaunchAndWait(lane, sequence + 1, second), IsOk());
          EXPECT_THAT(unwaited->Wait(absl::InfiniteFuture()), IsOk());
          EXPECT_THAT(first, Each(2.0f));
          EXPECT_THAT(second, Each(4.0f));
        }
      }));
    }
  }
  for (std::thread& caller : callers) caller.join();
}

}  // namespace
}  // namespace coordd
