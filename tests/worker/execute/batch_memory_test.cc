// Where a batch's bytes are moved: at once on the host, noted on a device.
#include "worker/execute/batch_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "absl/types/span.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

TensorSpec Sum(int64_t elements) {
  TensorSpec spec;
  spec.name = "a";
  spec.op = ReduceOp::kSum;
  spec.shape = {elements};
  return spec;
}

class BatchMemoryTest : public ::testing::Test {
 protected:
  static std::byte* Bytes(std::array<float, 2>& values) {
    return reinterpret_cast<std::byte*>(values.data());
  }
  std::array<float, 2> from_{3, 5};
  std::array<float, 2> to_{1, 1};
  const int64_t bytes_ = sizeof(to_);
  BatchMemory memory_;
};

TEST_F(BatchMemoryTest, OnTheHostAMoveHasHappened) {
  memory_.CopyAndScale(Sum(2), 2.0, Bytes(to_), Bytes(from_), bytes_);
  EXPECT_THAT(to_, testing::ElementsAre(6, 10));
  memory_.FillIdentity(Sum(2), Bytes(to_), bytes_);
  EXPECT_THAT(to_, testing::ElementsAre(0, 0));
  memory_.Copy(Bytes(to_), Bytes(from_), bytes_);
  EXPECT_EQ(to_, from_);
  EXPECT_TRUE(memory_.TakeMoves().empty());
  EXPECT_EQ(memory_.device(), -1);
}

TEST_F(BatchMemoryTest, WhatIsThrownAwayHasAPlaceAsLongAsTheBatch) {
  const absl::StatusOr<std::byte*> first = memory_.Discard(Sum(2), bytes_);
  const absl::StatusOr<std::byte*> second = memory_.Discard(Sum(2), bytes_);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_NE(*first, *second);
}

TEST_F(BatchMemoryTest, OnADeviceMovesAreNotedInOrder) {
  memory_.UseDevice(
      3, [](int64_t) { return absl::ResourceExhaustedError("full"); },
      [this](int64_t) { return Bytes(to_); });
  memory_.Copy(Bytes(to_), Bytes(from_), bytes_);
  memory_.Copy(Bytes(to_), Bytes(to_), bytes_);  // is there
  memory_.Copy(Bytes(to_), Bytes(from_), 0);     // is nothing
  memory_.CopyAndScale(Sum(2), 0.5, Bytes(to_), Bytes(from_), bytes_);
  EXPECT_THAT(to_, testing::ElementsAre(1, 1));
  const std::vector<TensorMove> moves = memory_.TakeMoves();
  ASSERT_EQ(moves.size(), 2u);
  EXPECT_EQ(moves[0].kind, TensorMove::Kind::kCopy);
  EXPECT_EQ(moves[1].factor, 0.5);
  EXPECT_TRUE(memory_.TakeMoves().empty());
  EXPECT_EQ(*memory_.Discard(Sum(2), bytes_), Bytes(to_));
  EXPECT_THAT(memory_.Allocate(Sum(2), bytes_),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       testing::HasSubstr("tensor a: no memory for a result of 8 bytes: full")));
}

}  // namespace
}  // namespace coordd
