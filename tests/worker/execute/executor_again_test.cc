// Collectives that say the same again, which the thread that calls them may execute at once.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/thread.h"
#include "common/protocol/store_memory.h"
#include "tests/support/status_matchers.h"
#include "tests/worker/support/rank_executor.h"
#include "worker/execute/executor.h"
#include "worker/execute/generation_end.h"

namespace coordd {
namespace {

constexpr absl::Duration kLong = absl::Minutes(5);

CollectiveArgs Allreduce(std::vector<float>& values, int64_t sequence) {
  CollectiveArgs args;
  args.kind = CollectiveKind::kAllreduce;
  args.dtype = DataType::kFloat32;
  args.op = ReduceOp::kSum;
  args.lane = LaneId{5};
  args.group = ProcessSetId{5};
  args.sequence = sequence;
  const size_t bytes = values.size() * sizeof(float);
  args.input = {reinterpret_cast<const std::byte*>(values.data()), bytes};
  args.output = {reinterpret_cast<std::byte*>(values.data()), bytes};
  return args;
}

// As CommExecution does.
absl::Status Call(Executor& executor, const CollectiveArgs& args, int& at_once) {
  const GenerationEnd end;
  std::shared_ptr<DirectRun> run;
  std::optional<absl::Status> ended = executor.RunAgain(args, kLong, kLong, end, run);
  if (ended.has_value() && run == nullptr) ++at_once;
  if (!ended.has_value() && run == nullptr)
    run = executor.BeginDirect(args, Clock::Real().Now() + kLong);
  while (!ended.has_value()) ended = executor.GoOnDirect(*run, absl::InfiniteFuture(), end);
  return *ended;
}

TEST(ExecutorAgain, ExecutesAtOnceWhereNothingElseIsUnderWay) {
  InProcessNetwork network(2);
  InMemoryStore store;
  std::vector<std::thread> ranks;
  for (int32_t r = 0; r < 2; ++r) {
    ranks.push_back(StartThread("rank", [&, r] {
      RankExecutor rank(r, 2, network, store);
      ASSERT_THAT(rank.status(), IsOk());
      ASSERT_THAT(rank.executor().OpenComm(LaneId{5}, {Rank{0}, Rank{1}}).status(), IsOk());
      int at_once = 0;
      for (int64_t sequence = 1; sequence <= 500; ++sequence) {
        std::vector<float> values = {static_cast<float>(r), static_cast<float>(sequence)};
        ASSERT_THAT(Call(rank.executor(), Allreduce(values, sequence), at_once), IsOk());
        EXPECT_EQ(values, (std::vector<float>{1, static_cast<float>(2 * sequence)}));
      }
      EXPECT_GT(at_once, 0);
      EXPECT_LT(at_once, 500);  // the first one has nothing to be like
    }));
  }
  for (std::thread& rank : ranks) rank.join();
}

// Whose collectives are done once it is told, or aborted.
class PatientBackend final : public CollectiveBackend {
 public:
  explicit PatientBackend(std::atomic<bool>& released) : released_(released) {}

  absl::string_view name() const override { return "patient"; }
  bool Supports(MemoryKind, DataType, CollectiveKind) const override { return true; }
  absl::Status Connect(const GroupLayout&, Store&, absl::Time) override { return {}; }
  absl::Status DefineGroup(ProcessSetId, absl::Span<const Rank>) override { return {}; }
  void EndGroup(ProcessSetId) override {}
  void EndLane(LaneId) override {}
  absl::Status Launch(CollectiveArgs, Done done) override {
    running_.push_back(std::move(done));
    return absl::OkStatus();
  }
  std::optional<absl::Status> RunAgain(const CollectiveArgs&,
                                       absl::FunctionRef<bool(bool moved)> goes_on,
                                       absl::FunctionRef<Done()> launched) override {
    while (goes_on(false)) {
      if (released_) return absl::OkStatus();
    }
    running_.push_back(launched());
    return std::nullopt;
  }
  bool Progress() override {
    if (!released_ && !aborted_) return false;
    std::vector<Done> ended;
    ended.swap(running_);
    for (Done& done : ended)
      std::move(done)(released_ ? absl::OkStatus() : absl::AbortedError("aborted"));
    return !ended.empty();
  }
  absl::StatusOr<absl::Span<std::byte>> AllocateFusionBuffer(int64_t) override {
    return absl::UnimplementedError("none");
  }
  void Abort() override { aborted_ = true; }

 private:
  std::atomic<bool>& released_;
  std::atomic<bool> aborted_ = false;
  std::vector<Done> running_;
};

class ExecutorAgainPatiently : public testing::Test {
 protected:
  ExecutorAgainPatiently()
      : executor_({.polling_threads = 1, .cores = 2}, std::make_unique<PatientBackend>(released_),
                  Clock::Real(), [](std::unique_ptr<BatchJob>) {}) {
    EXPECT_THAT(executor_.Start(GroupLayout::OneNode(Rank{0}, 1), store_, absl::InfiniteFuture()),
                IsOk());
    while (executor_.seat()->taken()) std::this_thread::yield();
  }
  std::optional<absl::Status> RunAgain(absl::Duration timeout, absl::Duration most) {
    return executor_.RunAgain(Allreduce(values_, 1), timeout, most, end_, run_);
  }
  std::optional<absl::Status> GoOn(absl::Time pause) {
    return executor_.GoOnDirect(*run_, pause, end_);
  }

  std::atomic<bool> released_ = false;
  InMemoryStore store_;
  GenerationEnd end_;
  Executor executor_;
  std::vector<float> values_ = {1, 2};
  std::shared_ptr<DirectRun> run_;
};

TEST_F(ExecutorAgainPatiently, LeavesTheSeatWhenItsTimeIsOverAndIsGoneOnWith) {
  EXPECT_EQ(RunAgain(kLong, absl::Milliseconds(1)), std::nullopt);
  ASSERT_NE(run_, nullptr);
  EXPECT_EQ(GoOn(Clock::Real().Now()), std::nullopt);
  released_ = true;
  EXPECT_EQ(GoOn(absl::InfiniteFuture()), absl::OkStatus());
}

TEST_F(ExecutorAgainPatiently, EndsAtItsDeadline) {
  const std::optional<absl::Status> ended = RunAgain(absl::Milliseconds(1), kLong);
  ASSERT_TRUE(ended.has_value());
  EXPECT_TRUE(absl::IsDeadlineExceeded(*ended)) << *ended;
}

TEST_F(ExecutorAgainPatiently, EndsSomeTimeAfterItsGeneration) {
  end_.Set(absl::UnavailableError("rank 1 was lost"));
  const std::optional<absl::Status> ended = RunAgain(kLong, kLong);
  ASSERT_TRUE(ended.has_value());
  EXPECT_TRUE(absl::IsAborted(*ended)) << *ended;
}

TEST_F(ExecutorAgainPatiently, MakesRoomForWhoeverCalls) {
  std::thread caller = StartThread("comm", [this] {
    while (!executor_.seat()->taken()) std::this_thread::yield();
    EXPECT_THAT(executor_.OpenComm(LaneId{6}, {Rank{0}}).status(), IsOk());
    released_ = true;
  });
  std::optional<absl::Status> ended = RunAgain(kLong, kLong);
  caller.join();
  EXPECT_EQ(ended, absl::OkStatus());
}

TEST_F(ExecutorAgainPatiently, BeginsNothingBesideWhatIsUnderWay) {
  std::vector<float> others = {3};
  const std::shared_ptr<DirectRun> other =
      executor_.BeginDirect(Allreduce(others, 1), absl::InfiniteFuture());
  EXPECT_EQ(RunAgain(kLong, kLong), std::nullopt);
  EXPECT_EQ(run_, nullptr);
  released_ = true;
  EXPECT_EQ(executor_.GoOnDirect(*other, absl::InfiniteFuture(), end_), absl::OkStatus());
}

TEST_F(ExecutorAgainPatiently, BeginsNothingOnceTheDataPlaneHasStopped) {
  executor_.Abort();
  EXPECT_EQ(RunAgain(kLong, kLong), std::nullopt);
  EXPECT_EQ(run_, nullptr);
  executor_.Stop();
  EXPECT_EQ(RunAgain(kLong, kLong), std::nullopt);
  EXPECT_EQ(executor_.BeginDirect(Allreduce(values_, 1), absl::InfiniteFuture()), nullptr);
}

}  // namespace
}  // namespace coordd
