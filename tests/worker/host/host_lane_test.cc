#include "worker/host/host_lane.h"

#include <gtest/gtest.h>

#include <utility>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/protocol/store_memory.h"
#include "tests/worker/support/in_process_transport.h"
#include "tests/worker/support/reference.h"

namespace coordd {
namespace {

// Of one rank, which ends each of its collectives by itself.
class HostLaneTest : public testing::Test {
 protected:
  HostLaneTest() : network_(1), transport_(network_) {
    EXPECT_EQ(transport_.Connect(group_.layout, store_, Clock::Real().Now() + absl::Minutes(1)),
              absl::OkStatus());
  }

  CollectiveArgs Allreduce(int64_t count) {
    input_ = TestInput(DataType::kFloat32, 0, count, static_cast<int32_t>(++sequence_));
    output_.assign(input_.size(), std::byte{0});
    CollectiveArgs args;
    args.kind = CollectiveKind::kAllreduce;
    args.dtype = DataType::kFloat32;
    args.op = ReduceOp::kSum;
    args.sequence = sequence_;
    args.input = input_;
    args.output = absl::MakeSpan(output_);
    return args;
  }
  void Run(const CollectiveArgs& args) {
    lane_.StartSchedule(args, group_, Algorithm::kLocalCopy, {}, transport_);
    while (!lane_.run->finished()) lane_.run->Advance();
    EXPECT_EQ(lane_.run->status(), absl::OkStatus());
    lane_.EndRun();
    EXPECT_EQ(output_, input_);
  }

  InProcessNetwork network_;
  InProcessTransport transport_;
  InMemoryStore store_;
  const HostGroup group_{.layout = GroupLayout::OneNode(Rank{0}, 1), .members = {}};
  HostLane lane_;
  Bytes input_, output_;
  int64_t sequence_ = 0;
};

TEST_F(HostLaneTest, KeepsTheRunOfWhatIsSaidAgain) {
  EXPECT_FALSE(lane_.kept.Does(Allreduce(10)));
  Run(Allreduce(10));
  EXPECT_TRUE(lane_.kept.Does(Allreduce(10)));
  Run(Allreduce(10));
  EXPECT_TRUE(lane_.kept.Does(Allreduce(10)));
}

TEST_F(HostLaneTest, TakesWhatDiffersInAnythingForAnother) {
  Run(Allreduce(10));
  const auto is_the_same = [&](auto change) {
    CollectiveArgs args = Allreduce(10);
    change(args);
    return lane_.kept.Does(args);
  };
  EXPECT_TRUE(is_the_same([](CollectiveArgs&) {}));
  EXPECT_FALSE(is_the_same([](CollectiveArgs& args) { args.kind = CollectiveKind::kBroadcast; }));
  EXPECT_FALSE(is_the_same([](CollectiveArgs& args) { args.dtype = DataType::kInt32; }));
  EXPECT_FALSE(is_the_same([](CollectiveArgs& args) { args.op = ReduceOp::kMax; }));
  EXPECT_FALSE(is_the_same([](CollectiveArgs& args) { args.root = Rank{1}; }));
  EXPECT_FALSE(is_the_same([](CollectiveArgs& args) { args.input.remove_suffix(4); }));
  EXPECT_FALSE(is_the_same([](CollectiveArgs& args) { args.output.remove_suffix(4); }));
  EXPECT_FALSE(is_the_same([](CollectiveArgs& args) { args.input_block_bytes = {40}; }));
  EXPECT_FALSE(is_the_same([](CollectiveArgs& args) { args.output_block_bytes = {40}; }));
}

// It runs: another one cannot have it.
TEST_F(HostLaneTest, GivesAKeptRunToOneAtATime) {
  Run(Allreduce(10));
  const CollectiveArgs args = Allreduce(10);
  lane_.StartSchedule(args, group_, Algorithm::kLocalCopy, {}, transport_);
  EXPECT_FALSE(lane_.kept.Does(args));
  while (!lane_.run->finished()) lane_.run->Advance();
  lane_.EndRun();
  EXPECT_TRUE(lane_.kept.Does(args));
}

TEST_F(HostLaneTest, KeepsNothingLarge) {
  Run(Allreduce(static_cast<int64_t>(KeptRun::kBytesMax / 8)));
  EXPECT_TRUE(lane_.kept.Does(Allreduce(static_cast<int64_t>(KeptRun::kBytesMax / 8))));
  Run(Allreduce(static_cast<int64_t>(KeptRun::kBytesMax / 8 + 1)));
  EXPECT_FALSE(lane_.kept.Does(Allreduce(static_cast<int64_t>(KeptRun::kBytesMax / 8 + 1))));
}

TEST_F(HostLaneTest, KeepsNothingThatHasFailed) {
  const CollectiveArgs args = Allreduce(10);
  lane_.StartSchedule(args, group_, Algorithm::kLocalCopy, {}, transport_);
  lane_.run->Fail(absl::AbortedError("over"));
  lane_.EndRun();
  EXPECT_FALSE(lane_.kept.Does(args));
}

// Its scratch is that of the lane.
TEST_F(HostLaneTest, ForgetsARunWhoseScratchGoes) {
  Run(Allreduce(10));
  EXPECT_EQ(lane_.MakeRoom(1 << 20), absl::OkStatus());
  EXPECT_FALSE(lane_.kept.Does(Allreduce(10)));
  Run(Allreduce(10));
  EXPECT_EQ(lane_.MakeRoom(1 << 10), absl::OkStatus());  // there is as much already
  EXPECT_TRUE(lane_.kept.Does(Allreduce(10)));
}

}  // namespace
}  // namespace coordd
