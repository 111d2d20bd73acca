#include "worker/node/node_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/status_matchers.h"
#include "worker/base/aligned_buffer.h"
#include "worker/node/node_run.h"

namespace coordd {
namespace {

using testing::HasSubstr;

CollectiveArgs Reducing(CollectiveKind kind, ReduceOp op, DataType dtype, std::vector<float>& data,
                        size_t size_bytes) {
  CollectiveArgs args;
  args.kind = kind;
  args.op = op;
  args.dtype = dtype;
  auto* const bytes = reinterpret_cast<std::byte*>(data.data());
  args.input = {bytes, size_bytes};
  args.output = {bytes, size_bytes};
  return args;
}

CollectiveArgs Broadcasting(int32_t root, std::vector<float>& data, size_t size_bytes) {
  CollectiveArgs args;
  args.kind = CollectiveKind::kBroadcast;
  args.root = Rank{root};
  args.output = {reinterpret_cast<std::byte*>(data.data()), size_bytes};
  return args;
}

TEST(CallWord, TellsWhatMembersMustAgreeOn) {
  std::vector<float> data(8);
  const auto reduce = [&](ReduceOp op, DataType dtype, size_t size_bytes) {
    return CallWord(Reducing(CollectiveKind::kAllreduce, op, dtype, data, size_bytes));
  };
  const uint64_t word = reduce(ReduceOp::kSum, DataType::kFloat32, 16);
  EXPECT_EQ(word, reduce(ReduceOp::kSum, DataType::kFloat32, 16));
  EXPECT_NE(word, reduce(ReduceOp::kMax, DataType::kFloat32, 16));
  EXPECT_NE(word, reduce(ReduceOp::kSum, DataType::kInt32, 16));
  EXPECT_NE(word, reduce(ReduceOp::kSum, DataType::kFloat32, 20));
  EXPECT_NE(CallWord(Broadcasting(0, data, 16)), CallWord(Broadcasting(1, data, 16)));
  CollectiveArgs exchange;
  exchange.kind = CollectiveKind::kAlltoall;
  exchange.equal_blocks = true;
  const uint64_t equal = CallWord(exchange);
  exchange.equal_blocks = false;
  EXPECT_NE(CallWord(exchange), equal) << "of nothing, too";
  EXPECT_THAT(DifferentCalls(1, CallWord(exchange), equal).message(),
              HasSubstr("member 1 of the group calls alltoall with splits, this one alltoall"));
  CollectiveArgs barrier;
  barrier.kind = CollectiveKind::kBarrier;
  EXPECT_NE(CallWord(barrier), 0u);
}

TEST(DifferentCalls, SayBoth) {
  std::vector<float> data(8);
  const uint64_t own =
      CallWord(Reducing(CollectiveKind::kAllreduce, ReduceOp::kSum, DataType::kFloat32, data, 16));
  EXPECT_THAT(DifferentCalls(1, CallWord(Broadcasting(2, data, 8)), own),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "member 1 of the group calls broadcast of 8 bytes from member 2, this one "
                       "allreduce (sum) of 4 float32"));
}

// Two members of a node, whose memories begin with their boards.
class DifferentCallsTest : public testing::Test {
 protected:
  static constexpr int64_t kBytes = int64_t{68} << 20;
  static constexpr size_t kUsedBoardBytes = size_t{1} << 20;

  DifferentCallsTest() {
    for (int m = 0; m < 2; ++m) {
      std::memset(buffers_[m].data(), 0, kUsedBoardBytes);
      memories_.push_back(buffers_[m].span());
    }
    for (int m = 0; m < 2; ++m) lanes_[m] = std::make_unique<NodeLane>(LaneId{7}, memories_, m);
  }

  // Runs what each calls until nothing moves; how they end.
  std::vector<absl::Status> Run(const CollectiveArgs& first, const CollectiveArgs& second) {
    NodeCollectiveRun one(first, *lanes_[0], staging_[0].span(), {});
    NodeCollectiveRun other(second, *lanes_[1], staging_[1].span(), {});
    bool moved = true;
    while (moved) {
      moved = !one.finished() && one.Advance();
      moved |= !other.finished() && other.Advance();
    }
    EXPECT_TRUE(one.finished() && other.finished());
    return {one.status(), other.status()};
  }

  AlignedBuffer buffers_[2] = {AlignedBuffer(kBytes), AlignedBuffer(kBytes)};
  AlignedBuffer staging_[2] = {AlignedBuffer(1 << 20), AlignedBuffer(1 << 20)};
  std::vector<NodeMemory> memories_;
  std::unique_ptr<NodeLane> lanes_[2];
  std::vector<float> small_ = std::vector<float>(8), large_ = std::vector<float>(1 << 16);
};

TEST_F(DifferentCallsTest, OfAnotherSizeAreToldToBoth) {
  const auto of = [this](size_t size_bytes) {
    return Reducing(CollectiveKind::kAllreduce, ReduceOp::kSum, DataType::kFloat32,
                    size_bytes > 1024 ? large_ : small_, size_bytes);
  };
  EXPECT_THAT(Run(of(16), of(32)),
              testing::ElementsAre(
                  StatusIs(absl::StatusCode::kFailedPrecondition,
                           "member 1 of the group calls allreduce (sum) of 8 float32, this one "
                           "allreduce (sum) of 4 float32"),
                  StatusIs(absl::StatusCode::kFailedPrecondition,
                           "member 0 of the group calls allreduce (sum) of 4 float32, this one "
                           "allreduce (sum) of 8 float32")));
}

TEST_F(DifferentCallsTest, OneThatFitsAPostAndOneThatDoesNot) {
  const CollectiveArgs large = Reducing(CollectiveKind::kAllreduce, ReduceOp::kSum,
                                        DataType::kFloat32, large_, large_.size() * sizeof(float));
  const CollectiveArgs small =
      Reducing(CollectiveKind::kAllreduce, ReduceOp::kSum, DataType::kFloat32, small_, 4);
  for (const absl::Status& status : Run(large, small))
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
}

TEST_F(DifferentCallsTest, ABroadcastsRootHearsNothingAndTheOthersDo) {
  const std::vector<absl::Status> ended =
      Run(Broadcasting(0, small_, 16),
          Reducing(CollectiveKind::kAllreduce, ReduceOp::kMax, DataType::kFloat32, small_, 16));
  EXPECT_THAT(ended[0], IsOk());
  EXPECT_THAT(
      ended[1],
      StatusIs(absl::StatusCode::kFailedPrecondition,
               HasSubstr("member 0 of the group calls broadcast of 16 bytes from member 0")));
}

}  // namespace
}  // namespace coordd
