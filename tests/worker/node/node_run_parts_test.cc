// The parts of a run on a node: for whom it waits, and how far it is with a step.
#include <gtest/gtest.h>

#include <vector>

#include "worker/node/awaited_step.h"
#include "worker/node/operation_cursor.h"

namespace coordd {
namespace {

// Of three members, this one being the first.
struct FakeLane {
  int32_t self() const { return 0; }
  bool HasReached(int32_t member, int64_t step) const {
    return reached[static_cast<size_t>(member)] >= step;
  }
  int32_t FirstBehind(int64_t step) const {
    for (int32_t member : {1, 2})
      if (!HasReached(member, step)) return member;
    return -1;
  }
  std::vector<int64_t> reached = {0, 0, 0};
};

TEST(AwaitedStepTest, WaitsForWhoIsBehindUntilHeIsThere) {
  FakeLane lane;
  AwaitedStep<FakeLane> awaited;
  EXPECT_FALSE(awaited.WaitsFor(lane, 1));
  lane.reached[1] = 1;
  EXPECT_FALSE(awaited.AllHaveReached(lane, 1));
  EXPECT_FALSE(awaited.WaitsFor(lane, 0));
  EXPECT_FALSE(awaited.WaitsFor(lane, 1));
  EXPECT_TRUE(awaited.WaitsFor(lane, 2));
  lane.reached[2] = 1;
  EXPECT_FALSE(awaited.WaitsFor(lane, 2));
  EXPECT_TRUE(awaited.AllHaveReached(lane, 1));
}

TEST(AwaitedStepTest, WaitsForOneMemberAlone) {
  FakeLane lane;
  AwaitedStep<FakeLane> awaited;
  EXPECT_FALSE(awaited.HasReached(lane, 2, 5));
  EXPECT_FALSE(awaited.WaitsFor(lane, 1));
  EXPECT_TRUE(awaited.WaitsFor(lane, 2));
  lane.reached[2] = 5;
  EXPECT_TRUE(awaited.HasReached(lane, 2, 5));
  EXPECT_FALSE(awaited.WaitsFor(lane, 2));
}

TEST(OperationCursorTest, GoesThroughOperationsInPortions) {
  OperationCursor cursor;
  EXPECT_TRUE(cursor.finished());
  NodeOperations operations(2);
  operations[0].size_bytes = 10;
  operations[1].size_bytes = 0;
  cursor.Begin(operations);
  EXPECT_FALSE(cursor.Advance(4));
  EXPECT_EQ(cursor.done_bytes(), 4);
  EXPECT_EQ(cursor.left_bytes(), 6);
  EXPECT_TRUE(cursor.Advance(6));
  cursor.Next();
  EXPECT_EQ(cursor.done_bytes(), 0);
  EXPECT_TRUE(cursor.Advance(0));
  cursor.Next();
  EXPECT_TRUE(cursor.finished());
}

}  // namespace
}  // namespace coordd
