// What a HostBackend executes at once, and what it leaves to Launch: two ranks, which the test
// drives.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/thread.h"
#include "common/protocol/store_memory.h"
#include "tests/worker/support/in_process_transport.h"
#include "worker/host/host_backend.h"

namespace coordd {
namespace {

class HostBackendAgain : public testing::Test {
 protected:
  HostBackendAgain() : network_(2) {
    for (int32_t r = 0; r < 2; ++r)
      backends_.push_back(
          std::make_unique<HostBackend>(std::make_unique<InProcessTransport>(network_)));
    std::thread other = StartThread("connects", [this] { Connect(1); });
    Connect(0);
    other.join();
  }
  void Connect(int32_t rank) {
    EXPECT_EQ(backend(rank).Connect(GroupLayout::OneNode(Rank{rank}, 2), store_,
                                    Clock::Real().Now() + absl::Minutes(1)),
              absl::OkStatus());
  }
  HostBackend& backend(int32_t rank) { return *backends_[static_cast<size_t>(rank)]; }

  // The next allreduce of a rank, of two values.
  CollectiveArgs Next(int32_t rank) {
    std::vector<int64_t>& values = values_[rank];
    values = {rank + 1, 10};
    CollectiveArgs args;
    args.kind = CollectiveKind::kAllreduce;
    args.dtype = DataType::kInt64;
    args.op = ReduceOp::kSum;
    args.sequence = launched_[rank] + 1;
    const size_t bytes = values.size() * sizeof(int64_t);
    args.input = {reinterpret_cast<const std::byte*>(values.data()), bytes};
    args.output = {reinterpret_cast<std::byte*>(values.data()), bytes};
    return args;
  }
  void Launch(int32_t rank) {
    EXPECT_EQ(backend(rank).Launch(Next(rank), DoneOf(rank)), absl::OkStatus());
    ++launched_[rank];
  }
  CollectiveBackend::Done DoneOf(int32_t rank) {
    return [this, rank](absl::Status status) {
      EXPECT_EQ(status, absl::OkStatus());
      ++ended_[rank];
    };
  }
  // Rank 0 at once, for so many turns at most, in which rank 1 has its own.
  std::optional<absl::Status> RunAgain(const CollectiveArgs& args, int turns = 1000) {
    turns_ = 0;
    const auto goes_on = [&](bool) {
      backend(1).Progress();
      return ++turns_ < turns;
    };
    const auto launched = [&] {
      is_launched_ = true;
      return DoneOf(0);
    };
    const std::optional<absl::Status> ended = backend(0).RunAgain(args, goes_on, launched);
    if (ended.has_value() || is_launched_) ++launched_[0];
    return ended;
  }
  void ExpectSums() {
    for (const std::vector<int64_t>& values : values_)
      EXPECT_EQ(values, (std::vector<int64_t>{3, 20}));
  }
  void LaunchOnBoth() {
    Launch(0);
    Launch(1);
    while (backend(0).Progress() || backend(1).Progress()) continue;
    ExpectSums();
  }

  InProcessNetwork network_;
  InMemoryStore store_;
  std::vector<std::unique_ptr<HostBackend>> backends_;
  std::vector<int64_t> values_[2];
  int64_t launched_[2] = {};
  int ended_[2] = {};
  int turns_ = 0;
  bool is_launched_ = false;
};

TEST_F(HostBackendAgain, ExecutesAtOnceWhatWasSaidBefore) {
  LaunchOnBoth();
  for (int i = 0; i < 3; ++i) {
    Launch(1);
    EXPECT_EQ(RunAgain(Next(0)), absl::OkStatus());
    while (backend(1).Progress()) continue;
    ExpectSums();
  }
  EXPECT_FALSE(is_launched_);
  EXPECT_EQ(ended_[0], 1);
  EXPECT_EQ(ended_[1], 4);
}

TEST_F(HostBackendAgain, LeavesToLaunchWhatIsSaidForTheFirstTime) {
  EXPECT_EQ(RunAgain(Next(0)), std::nullopt);
  LaunchOnBoth();
  CollectiveArgs other = Next(0);
  other.op = ReduceOp::kMax;
  EXPECT_EQ(RunAgain(other), std::nullopt);
  CollectiveArgs of_nobody = Next(0);
  of_nobody.group = ProcessSetId{7};
  EXPECT_EQ(RunAgain(of_nobody), std::nullopt);
  CollectiveArgs on_another_lane = Next(0);
  on_another_lane.lane = LaneId{9};
  EXPECT_EQ(RunAgain(on_another_lane), std::nullopt);
  EXPECT_EQ(turns_, 0);
  EXPECT_FALSE(is_launched_);
}

TEST_F(HostBackendAgain, OvertakesNothingOfItsLane) {
  LaunchOnBoth();
  Launch(0);
  EXPECT_EQ(RunAgain(Next(0)), std::nullopt);
  EXPECT_EQ(turns_, 0);
  EXPECT_FALSE(is_launched_);
  Launch(1);
  while (backend(0).Progress() || backend(1).Progress()) continue;
  ExpectSums();
}

TEST_F(HostBackendAgain, GoesOnAsLaunchedWhenItIsNotToGoOn) {
  LaunchOnBoth();
  EXPECT_EQ(RunAgain(Next(0), /*turns=*/3), std::nullopt);
  EXPECT_TRUE(is_launched_);
  EXPECT_EQ(ended_[0], 1);
  // What is launched behind it waits for it.
  Launch(1);
  while (backend(0).Progress() || backend(1).Progress()) continue;
  EXPECT_EQ(ended_[0], 2);
  ExpectSums();
  // And the one after that is done at once again.
  Launch(1);
  EXPECT_EQ(RunAgain(Next(0)), absl::OkStatus());
  while (backend(1).Progress()) continue;
  ExpectSums();
}

TEST_F(HostBackendAgain, DoesNothingAtOnceOnceItHasFailed) {
  LaunchOnBoth();
  backend(0).Abort();
  backend(0).Progress();
  EXPECT_EQ(RunAgain(Next(0)), std::nullopt);
  EXPECT_FALSE(is_launched_);
}

}  // namespace
}  // namespace coordd
