// What joined ranks change about readiness.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/generation/readiness_table.h"
#include "tests/server/support/builders.h"
#include "tests/support/start_time.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Code = absl::StatusCode;

TensorSpec Rooted(CollectiveKind kind, std::string name, int32_t root) {
  TensorSpec spec = Gradient(std::move(name), {2});
  spec.kind = kind;
  if (!Reduces(kind)) spec.op = ReduceOp::kNone;
  spec.root_rank = root;
  return spec;
}

TensorSpec Pairwise(CollectiveKind kind, int32_t peer) {
  TensorSpec spec = Gradient("x", {2});
  spec.kind = kind;
  spec.op = ReduceOp::kNone;
  spec.peer_rank = peer;
  return spec;
}

// Ranks 2, 5 and 8 are a process set.
class ReadinessJoinTest : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_THAT(table_.CheckConsistency(), IsOk()); }

  void Report(int32_t rank, const TensorSpec& spec) {
    table_.Report(Rank{rank}, spec, kStart, failed_);
  }
  void Join(int32_t rank) { table_.Join(Rank{rank}, failed_); }
  // "a" or, if a joined rank must be told its spec, "a*".
  std::vector<std::string> TakeReady() {
    std::vector<std::string> names;
    for (const ReadyTensor& tensor : table_.TakeReady()) {
      names.push_back(tensor.spec.name + (tensor.for_joined ? "*" : ""));
    }
    return names;
  }
  std::vector<FailedTensor> TakeFailed() { return std::exchange(failed_, {}); }

  ReadinessTotals totals_{9};
  ReadinessTable table_{ProcessSetId{4}, MemberList(Ranks({2, 5, 8})), {}, totals_};
  std::vector<FailedTensor> failed_;
};

auto FailureInSet(const std::string& name, Code code, const std::string& text,
                  std::vector<Rank> ranks) {
  return AllOf(
      Field(&FailedTensor::process_set, ProcessSetId{4}), Field(&FailedTensor::name, name),
      Field(&FailedTensor::ranks, ranks),
      Field(&FailedTensor::fault, Field(&TensorFault::status, StatusIs(code, HasSubstr(text)))));
}

TEST_F(ReadinessJoinTest, CountsAsInForWhatComes) {
  Join(5);
  Report(2, Gradient("a", {4}));
  EXPECT_THAT(table_.Find("a")->missing, ElementsAre(Rank{8}));
  Report(8, Gradient("a", {4}));
  EXPECT_THAT(TakeReady(), ElementsAre("a*"));
}

TEST_F(ReadinessJoinTest, CompletesWhatWaitedOnlyForIt) {
  Report(2, Gradient("b", {4}));
  Report(8, Gradient("a", {4}));
  Report(2, Gradient("a", {4}));
  Report(8, Gradient("b", {4}));
  Report(2, Gradient("c", {4}));
  Join(5);
  EXPECT_THAT(TakeReady(), ElementsAre("b*", "a*"));  // oldest first
  Join(8);
  EXPECT_THAT(TakeReady(), ElementsAre("c*"));
}

TEST_F(ReadinessJoinTest, ItsOwnReportsStand) {
  Report(5, Gradient("a", {4}));
  Join(5);
  Report(2, Gradient("a", {4}));
  Report(8, Gradient("a", {4}));
  EXPECT_THAT(TakeReady(), ElementsAre("a"));
}

TEST_F(ReadinessJoinTest, IsMissedAgainWhenTheJoinEnds) {
  Join(5);
  Report(2, Gradient("a", {4}));
  table_.EndJoin();
  Report(8, Gradient("a", {4}));
  EXPECT_THAT(TakeReady(), IsEmpty());
  EXPECT_THAT(table_.Find("a")->missing, ElementsAre(Rank{5}));
}

TEST_F(ReadinessJoinTest, ARootWithoutDataIsNamed) {
  Report(2, Rooted(CollectiveKind::kBroadcast, "early", 5));
  Report(5, Rooted(CollectiveKind::kBroadcast, "own", 5));
  Join(5);
  EXPECT_THAT(TakeFailed(), ElementsAre(FailureInSet(
                                "early", Code::kFailedPrecondition,
                                "rank 5, the root of this broadcast, has joined", Ranks({2}))));
  for (CollectiveKind kind : {CollectiveKind::kReduce, CollectiveKind::kGather}) {
    Report(8, Rooted(kind, "late", 5));
    EXPECT_THAT(TakeFailed(), ElementsAre(FailureInSet("late", Code::kFailedPrecondition,
                                                       "rank 5, the root of this", Ranks({8}))));
    Report(2, Rooted(kind, "late", 5));
    EXPECT_THAT(TakeFailed(), ElementsAre(FailureInSet("late", Code::kFailedPrecondition,
                                                       "has joined", Ranks({2}))));
  }
  Report(2, Rooted(CollectiveKind::kBroadcast, "other", 8));
  Report(8, Rooted(CollectiveKind::kBroadcast, "other", 8));
  Report(2, Rooted(CollectiveKind::kBroadcast, "own", 5));
  Report(8, Rooted(CollectiveKind::kBroadcast, "own", 5));
  EXPECT_THAT(TakeReady(), ElementsAre("other*", "own"));
  EXPECT_THAT(failed_, IsEmpty());
}

TEST_F(ReadinessJoinTest, IsNotToldLaterWhatFailedMeanwhile) {
  Report(2, Gradient("before", {1}));
  Report(8, Gradient("before", {2}));
  Join(5);
  Report(2, Gradient("during", {1}));
  Report(8, Gradient("during", {2}));
  TakeFailed();
  table_.EndJoin();
  for (const char* name : {"before", "during"}) {
    for (int32_t rank : {2, 5, 8}) Report(rank, Gradient(name, {1}));
  }
  EXPECT_THAT(failed_, IsEmpty());
  EXPECT_THAT(TakeReady(), ElementsAre("before", "during"));
  EXPECT_EQ(table_.tombstones(), 0);
}

TEST_F(ReadinessJoinTest, GroupsAreCompletedAndFailedToo) {
  Join(5);
  for (int32_t rank : {2, 8}) Report(rank, InGroup(Gradient("x", {1}), "G", 2));
  EXPECT_THAT(table_.Find("x")->missing, ElementsAre(Rank{2}, Rank{8}));  // of y
  for (int32_t rank : {2, 8}) Report(rank, InGroup(Gradient("y", {1}), "G", 2));
  EXPECT_THAT(TakeReady(), ElementsAre("x*", "y*"));

  Report(2, InGroup(Gradient("x", {1}), "G", 2));
  Report(2, InGroup(Rooted(CollectiveKind::kBroadcast, "y", 5), "G", 2));
  EXPECT_THAT(
      TakeFailed(),
      ElementsAre(
          FailureInSet("x", Code::kFailedPrecondition, "group G fails as a whole", Ranks({2})),
          FailureInSet("y", Code::kFailedPrecondition, "the root of this broadcast", Ranks({2}))));
  Report(8, InGroup(Gradient("x", {1}), "G", 2));
  Report(8, InGroup(Rooted(CollectiveKind::kBroadcast, "y", 5), "G", 2));
  EXPECT_EQ(TakeFailed().size(), 2u);
  EXPECT_EQ(table_.tombstones(), 0) << "nothing is kept for the joined rank";
}

TEST_F(ReadinessJoinTest, AGroupHalfNamedIsIncompleteAgainWhenTheJoinEnds) {
  Join(5);
  for (int32_t rank : {2, 8}) Report(rank, InGroup(Gradient("x", {1}), "G", 2));
  table_.EndJoin();
  for (int32_t rank : {2, 8}) Report(rank, InGroup(Gradient("y", {1}), "G", 2));
  EXPECT_THAT(TakeReady(), IsEmpty());
  Report(5, InGroup(Gradient("y", {1}), "G", 2));
  Report(5, InGroup(Gradient("x", {1}), "G", 2));
  EXPECT_THAT(TakeReady(), ElementsAre("x", "y"));
}

TEST(ReadinessPair, NeedsBothSidesOfASend) {
  ReadinessTotals totals(9);
  ReadinessTable table(ProcessSetId{0}, MemberList(Ranks({2, 5})), {}, totals);
  std::vector<FailedTensor> failed;
  table.Report(Rank{2}, Pairwise(CollectiveKind::kSend, 5), kStart, failed);
  table.Join(Rank{5}, failed);
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_THAT(failed[0].fault.status,
              StatusIs(Code::kFailedPrecondition,
                       HasSubstr("rank 5, to which rank 2 sends it, has joined")));
  table.EndJoin();
  table.Join(Rank{2}, failed);
  table.Report(Rank{5}, Pairwise(CollectiveKind::kReceive, 2), kStart, failed);
  ASSERT_EQ(failed.size(), 2u);
  EXPECT_THAT(failed[1].fault.status,
              StatusIs(Code::kFailedPrecondition,
                       HasSubstr("rank 2, from which rank 5 receives it, has joined")));
}

TEST(ReadinessTotals, SumUpTheTablesAndBoundThemTogether) {
  ReadinessTotals totals(4);
  const ReadinessBounds bounds{.max_pending = 3};
  ReadinessTable all(ProcessSetId{0}, MemberList::All(4), bounds, totals);
  std::vector<FailedTensor> failed;
  {
    ReadinessTable two(ProcessSetId{1}, MemberList(Ranks({0, 1})), bounds, totals);
    all.Report(Rank{0}, Gradient("a", {1}), kStart, failed);
    two.Report(Rank{0}, Gradient("a", {1}), kStart, failed);
    two.Report(Rank{0}, Gradient("b", {1}), kStart, failed);
    EXPECT_EQ(totals.pending, 3);
    EXPECT_THAT(failed, IsEmpty());
    all.Report(Rank{0}, Gradient("c", {1}), kStart, failed);
    EXPECT_THAT(failed, ElementsAre(Field(&FailedTensor::fault,
                                          Field(&TensorFault::status,
                                                StatusIs(Code::kResourceExhausted,
                                                         HasSubstr("3 tensors of this job"))))));
  }
  EXPECT_EQ(totals.pending, 1);
  all.Report(Rank{0}, Gradient("c", {1}), kStart, failed);
  EXPECT_EQ(failed.size(), 1u);
}

}  // namespace
}  // namespace coordd
