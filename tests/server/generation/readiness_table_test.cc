#include "server/generation/readiness_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
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
using ::testing::SizeIs;
using Code = absl::StatusCode;

class ReadinessTableTest : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_THAT(table_.CheckConsistency(), IsOk()); }

  void Report(int32_t rank, const TensorSpec& spec, absl::Time now = kStart) {
    table_.Report(Rank{rank}, spec, now, failed_);
  }
  void ReportOnAll(const TensorSpec& spec) {
    for (int32_t rank = 0; rank < 3; ++rank) Report(rank, spec);
  }
  std::vector<std::string> TakeNames() {
    std::vector<std::string> names;
    for (const ReadyTensor& tensor : table_.TakeReady()) names.push_back(tensor.spec.name);
    return names;
  }
  std::vector<FailedTensor> TakeFailed() { return std::exchange(failed_, {}); }

  ReadinessTotals totals_{3};
  ReadinessTable table_{ProcessSetId{0}, MemberList::All(3), {}, totals_};
  std::vector<FailedTensor> failed_;
};

auto Failure(const std::string& name, Code code, const std::string& text, std::vector<Rank> ranks) {
  return AllOf(
      Field(&FailedTensor::name, name), Field(&FailedTensor::ranks, ranks),
      Field(&FailedTensor::fault, Field(&TensorFault::status, StatusIs(code, HasSubstr(text)))));
}

TEST_F(ReadinessTableTest, IsReadyWhenTheLastRankIsIn) {
  Report(0, Gradient("a", {4}));
  Report(2, Gradient("a", {4}));
  EXPECT_FALSE(table_.has_ready());
  Report(1, Gradient("a", {4}));
  EXPECT_THAT(TakeNames(), ElementsAre("a"));
  EXPECT_EQ(table_.pending(), 0);
}

TEST_F(ReadinessTableTest, TakesWhatIsKnownToBeTheSameWithoutItsSpec) {
  auto report_same = [this](int32_t rank, bool same) {
    return table_.ReportSame(
        Rank{rank}, "a", [same](const TensorSpec&) { return same; }, kStart, failed_);
  };
  EXPECT_FALSE(report_same(0, true)) << "nobody has told what it is";
  Report(0, Gradient("a", {4}));
  EXPECT_FALSE(report_same(0, true)) << "a repetition is an error, which has to be told";
  EXPECT_FALSE(report_same(1, false));
  EXPECT_TRUE(report_same(1, true));
  EXPECT_TRUE(report_same(2, true));
  EXPECT_THAT(TakeNames(), ElementsAre("a"));
  EXPECT_THAT(TakeFailed(), IsEmpty());
}

TEST_F(ReadinessTableTest, KeepsTheOrderOfCompletionWhateverTheOrderOfReports) {
  Report(0, Gradient("a", {4}));
  Report(0, Gradient("b", {4}));
  Report(1, Gradient("b", {4}));
  Report(1, Gradient("a", {4}));
  Report(2, Gradient("b", {4}));
  Report(2, Gradient("a", {4}));
  EXPECT_THAT(TakeNames(), ElementsAre("b", "a"));
}

TEST_F(ReadinessTableTest, AcceptsANameAgainOnceItIsReady) {
  ReportOnAll(Gradient("a", {4}));
  ReportOnAll(Gradient("a", {8}));
  EXPECT_THAT(TakeNames(), ElementsAre("a", "a"));
  EXPECT_THAT(failed_, IsEmpty());
}

TEST_F(ReadinessTableTest, FailsAMismatchOnEveryRankThatNamesTheTensor) {
  Report(0, Gradient("a", {4}));
  Report(2, Gradient("a", {5}));
  EXPECT_THAT(TakeFailed(), ElementsAre(Failure("a", Code::kInvalidArgument,
                                                "tensor a: rank 2 has shape [5], rank 0 has [4]",
                                                {Rank{0}, Rank{2}})));
  EXPECT_EQ(table_.tombstones(), 1);
  Report(1, Gradient("a", {4}));
  EXPECT_THAT(TakeFailed(),
              ElementsAre(Failure("a", Code::kInvalidArgument, "rank 2 has shape", {Rank{1}})));
  EXPECT_EQ(table_.tombstones(), 0);
}

TEST_F(ReadinessTableTest, ARetryWaitsForRanksThatHaveNotHeardOfTheFailureYet) {
  Report(0, Gradient("a", {4}));
  table_.Withdraw(Rank{0}, "a", "its deadline passed", failed_);
  Report(0, Gradient("a", {4}));  // the retry
  TakeFailed();
  Report(1, Gradient("a", {4}));
  Report(2, Gradient("a", {4}));
  EXPECT_THAT(TakeFailed(), SizeIs(2));  // their first ones
  EXPECT_FALSE(table_.has_ready());
  Report(1, Gradient("a", {4}));
  Report(2, Gradient("a", {4}));
  EXPECT_THAT(TakeNames(), ElementsAre("a"));
}

TEST_F(ReadinessTableTest, WithdrawalIsHeardByAllAndOnlyOnce) {
  Report(0, Gradient("a", {4}));
  Report(1, Gradient("a", {4}));
  table_.Withdraw(Rank{2}, "a", "never submitted it", failed_);
  table_.Withdraw(Rank{1}, "b", "nobody did", failed_);
  EXPECT_THAT(failed_, IsEmpty());
  table_.Withdraw(Rank{1}, "a", "the deadline passed", failed_);
  table_.Withdraw(Rank{0}, "a", "the deadline passed", failed_);
  EXPECT_THAT(TakeFailed(),
              ElementsAre(Failure("a", Code::kCancelled, "rank 1 withdrew it: the deadline passed",
                                  {Rank{0}, Rank{1}})));
}

TEST_F(ReadinessTableTest, ARankThatRepeatsAPendingNameBringsItDown) {
  Report(0, Gradient("a", {4}));
  Report(0, Gradient("a", {4}));
  const auto again = Failure("a", Code::kAlreadyExists, "rank 0", {Rank{0}});
  EXPECT_THAT(TakeFailed(), ElementsAre(again, again));  // one for each report
}

TEST_F(ReadinessTableTest, AnUnusableReportFailsTheTensorForThoseWhoSubmittedItWell) {
  Report(0, Gradient("a", {4}));
  table_.Reject(Rank{1}, Gradient("a", {}), absl::InvalidArgumentError("dtype 99"), failed_);
  EXPECT_THAT(TakeFailed(),
              ElementsAre(Failure("a", Code::kInvalidArgument, "dtype 99", {Rank{0}, Rank{1}})));
  table_.Reject(Rank{2}, Gradient("a", {}), absl::InvalidArgumentError("dtype 98"), failed_);
  EXPECT_THAT(TakeFailed(),
              ElementsAre(Failure("a", Code::kInvalidArgument, "dtype 99", {Rank{2}})));
}

TEST_F(ReadinessTableTest, PlansAGroupTogether) {
  Report(0, Gradient("alone", {1}));
  for (int32_t rank = 0; rank < 3; ++rank) Report(rank, InGroup(Gradient("x", {1}), "G", 2));
  EXPECT_FALSE(table_.has_ready());
  for (int32_t rank = 0; rank < 3; ++rank) Report(rank, InGroup(Gradient("y", {1}), "G", 2));
  EXPECT_THAT(TakeNames(), ElementsAre("x", "y"));
}

TEST_F(ReadinessTableTest, FailsAGroupAsAWholeAlsoWhatIsNotNamedYet) {
  Report(0, InGroup(Gradient("x", {1}), "G", 2));
  Report(0, InGroup(Gradient("y", {1}), "G", 2));
  Report(1, InGroup(Gradient("y", {2}), "G", 2));
  EXPECT_THAT(
      TakeFailed(),
      ElementsAre(
          Failure("x", Code::kInvalidArgument, "group G fails as a whole", {Rank{0}}),
          Failure("y", Code::kInvalidArgument, "rank 1 has shape [2]", {Rank{0}, Rank{1}})));
  Report(1, InGroup(Gradient("x", {1}), "G", 2));
  Report(2, InGroup(Gradient("y", {1}), "G", 2));
  Report(2, InGroup(Gradient("x", {1}), "G", 2));
  EXPECT_THAT(TakeFailed(), SizeIs(3));
  EXPECT_EQ(table_.tombstones(), 0);
  EXPECT_EQ(table_.pending(), 0);
}

TEST_F(ReadinessTableTest, RefusesMoreTensorsThanTheGroupHas) {
  Report(0, InGroup(Gradient("x", {1}), "G", 1));
  Report(0, InGroup(Gradient("y", {1}), "G", 1));
  EXPECT_THAT(
      TakeFailed(),
      ElementsAre(Failure("y", Code::kInvalidArgument, "has all its 1 tensors already", {Rank{0}}),
                  Failure("x", Code::kInvalidArgument, "fails as a whole", {Rank{0}})));
}

TEST_F(ReadinessTableTest, FailsGroupsThatDifferInSizeOnEachRankAsAWhole) {
  for (const bool short_first : {true, false}) {
    const std::vector<int32_t> sizes = short_first ? std::vector{1, 3, 2} : std::vector{3, 1, 2};
    size_t expected = 0;
    for (int32_t rank = 0; rank < 3; ++rank) {
      const int32_t size = sizes[static_cast<size_t>(rank)];
      for (int32_t i = 1; i <= size; ++i, ++expected) {
        Report(rank, InGroup(Gradient(absl::StrCat("G_", i, "of", size), {1}), "G", size));
      }
    }
    EXPECT_THAT(TakeFailed(), SizeIs(expected));
    EXPECT_EQ(table_.tombstones(), 0);
    EXPECT_EQ(table_.pending(), 0);
  }
  for (int32_t rank = 0; rank < 3; ++rank) Report(rank, InGroup(Gradient("x", {1}), "G", 1));
  EXPECT_THAT(TakeNames(), ElementsAre("x"));
}

TEST_F(ReadinessTableTest, NamesTheRanksThatStall) {
  Report(1, Gradient("a", {4}));
  EXPECT_THAT(table_.Stalled(kStart + absl::Seconds(59), absl::Minutes(1), 10), IsEmpty());
  EXPECT_THAT(table_.Stalled(kStart + absl::Minutes(1), absl::Minutes(1), 10),
              ElementsAre(AllOf(Field(&PendingTensor::ready, ElementsAre(Rank{1})),
                                Field(&PendingTensor::missing, ElementsAre(Rank{0}, Rank{2})),
                                Field(&PendingTensor::missing_count, 2))));
}

TEST_F(ReadinessTableTest, NamesWhoOwesTheRestOfAGroup) {
  for (int32_t rank = 0; rank < 3; ++rank) Report(rank, InGroup(Gradient("x", {1}), "G", 2));
  Report(1, InGroup(Gradient("y", {1}), "G", 2));
  EXPECT_THAT(table_.Find("x")->missing, ElementsAre(Rank{0}, Rank{2}));
  EXPECT_THAT(table_.Find("y")->missing, ElementsAre(Rank{0}, Rank{2}));
}

TEST_F(ReadinessTableTest, CountsAStalledTensorOnceUntilItIsGone) {
  int64_t count = 0;
  Report(0, Gradient("a", {4}));
  Report(0, Gradient("b", {4}), kStart + absl::Seconds(5));
  EXPECT_EQ(table_.NextStall(absl::Seconds(10), absl::Minutes(5)), kStart + absl::Seconds(10));
  table_.NewlyStalled(kStart + absl::Seconds(10), absl::Seconds(10), 10, count);
  EXPECT_EQ(count, 1);
  table_.NewlyStalled(kStart + absl::Seconds(11), absl::Seconds(10), 10, count);
  EXPECT_EQ(count, 0);
  EXPECT_EQ(table_.NextStall(absl::Seconds(10), absl::Minutes(5)), kStart + absl::Seconds(15));
  table_.NewlyStalled(kStart + absl::Seconds(15), absl::Seconds(10), 10, count);
  EXPECT_EQ(table_.stalled(), 2);
  EXPECT_EQ(table_.NextStall(absl::Seconds(10), absl::Minutes(5)), kStart + absl::Minutes(5));
  Report(1, Gradient("a", {4}));
  Report(2, Gradient("a", {4}));
  EXPECT_EQ(table_.stalled(), 1);
}

TEST_F(ReadinessTableTest, FailsWhatIsTooOldAndBlamesTheOneWhoIsMissing) {
  Report(0, Gradient("a", {4}));
  Report(1, Gradient("a", {4}));
  table_.FailOlderThan(kStart + absl::Minutes(5), absl::Minutes(5), failed_);
  ASSERT_THAT(failed_, ElementsAre(Failure("a", Code::kDeadlineExceeded,
                                           "submitted by ranks 0, 1, but not by rank 2 within 5m",
                                           {Rank{0}, Rank{1}})));
  EXPECT_EQ(failed_.front().fault.blamed, Rank{2});
}

TEST_F(ReadinessTableTest, SaysForWhatTheMissingOneWaitsWhereOrdersDiffer) {
  Report(0, Gradient("a", {4}));
  Report(1, Gradient("a", {4}));
  Report(2, Gradient("b", {4}), kStart + absl::Seconds(1));
  Report(2, Gradient("c", {4}), kStart + absl::Seconds(1));
  table_.FailOlderThan(kStart + absl::Minutes(5), absl::Minutes(5), failed_);
  constexpr char kInstead[] =
      "rank 2 waits for tensor b, which rank 0 has not submitted: they call them in different "
      "orders, or call others";
  ASSERT_THAT(failed_, SizeIs(1));
  EXPECT_THAT(failed_.front().fault.status.message(), HasSubstr(kInstead));
  failed_.clear();
  Report(0, Gradient("d", {4}), kStart + absl::Seconds(2));
  table_.Withdraw(Rank{2}, "c", "its deadline passed", failed_);
  ASSERT_THAT(failed_, SizeIs(1));
  EXPECT_THAT(failed_.front().fault.status.message(),
              HasSubstr("not submitted by ranks 0, 1; rank 0 waits for tensor d, which rank 2"));
}

TEST_F(ReadinessTableTest, SleepOfTheCoordinatorMakesNothingOlder) {
  Report(0, Gradient("a", {4}));
  table_.Forgive(absl::Hours(1));
  table_.FailOlderThan(kStart + absl::Hours(1), absl::Minutes(5), failed_);
  EXPECT_THAT(failed_, IsEmpty());
}

TEST_F(ReadinessTableTest, CountsAnAllgatherByAllItsParts) {
  for (int32_t rank = 0; rank < 3; ++rank) {
    TensorSpec spec = Gradient("a", {10 * (rank + 1)});
    spec.kind = CollectiveKind::kAllgather;
    spec.op = ReduceOp::kNone;
    Report(rank, spec);
  }
  EXPECT_THAT(table_.TakeReady(), ElementsAre(Field(&ReadyTensor::fused_bytes, 60 * 4)));
}

TEST_F(ReadinessTableTest, TheStragglerHasTheLargestLag) {
  absl::Time now = kStart;
  for (int step = 0; step < 100; ++step) {
    const TensorSpec spec = Gradient(absl::StrCat("step", step), {1});
    Report(0, spec, now);
    Report(1, spec, now + absl::Milliseconds(10));
    Report(2, spec, now + absl::Milliseconds(500));
    now += absl::Seconds(1);
  }
  EXPECT_EQ(totals_.lag[0], absl::ZeroDuration());
  EXPECT_NEAR(absl::ToDoubleMilliseconds(totals_.lag[1]), 10, 1);
  EXPECT_NEAR(absl::ToDoubleMilliseconds(totals_.lag[2]), 500, 5);
}

TEST(ReadinessTable, TellsOnlyTheRankWhoseReportIsTooMuch) {
  ReadinessTotals totals(2);
  ReadinessTable table(ProcessSetId{0}, MemberList::All(2), {.max_pending = 2}, totals);
  std::vector<FailedTensor> failed;
  table.Report(Rank{0}, Gradient("a", {1}), kStart, failed);
  table.Report(Rank{0}, Gradient("b", {1}), kStart, failed);
  table.Report(Rank{0}, Gradient("c", {1}), kStart, failed);
  EXPECT_THAT(failed, ElementsAre(Failure("c", Code::kResourceExhausted, "pending", {Rank{0}})));
  table.Report(Rank{1}, Gradient("a", {1}), kStart, failed);  // what is known still completes
  EXPECT_TRUE(table.has_ready());
}

TEST(ReadinessTable, BoundsItsMemoryWhateverTheNumberOfRanks) {
  ReadinessTotals totals(100000);
  ReadinessTable table(ProcessSetId{0}, MemberList::All(100000), {.max_state_bytes = 1 << 20},
                       totals);
  std::vector<FailedTensor> failed;
  for (int i = 0; i < 200; ++i) {
    table.Report(Rank{0}, Gradient(absl::StrCat("t", i), {1}), kStart, failed);
  }
  EXPECT_LT(table.pending(), 90);  // 12.5 KB of bits each
  EXPECT_THAT(failed, ::testing::Not(IsEmpty()));
}

// As a program does that handles the errors of calls without a name: they all have one.
TEST(ReadinessTable, ARankThatIsManyFailuresAheadLeavesEachOfThemToTheOthers) {
  ReadinessTotals totals(2);
  ReadinessTable table(ProcessSetId{0}, MemberList::All(2), {}, totals);
  std::vector<FailedTensor> failed;
  for (int i = 0; i < 20; ++i) {
    table.Report(Rank{0}, Gradient("a", {1}), kStart, failed);
    table.Withdraw(Rank{0}, "a", "again", failed);
  }
  table.Report(Rank{0}, Gradient("a", {1}), kStart, failed);
  failed.clear();
  for (int i = 0; i < 20; ++i) table.Report(Rank{1}, Gradient("a", {1}), kStart, failed);
  EXPECT_THAT(failed, ::testing::SizeIs(20));
  EXPECT_EQ(table.tombstones(), 0);
  table.Report(Rank{1}, Gradient("a", {1}), kStart, failed);
  EXPECT_THAT(failed, ::testing::SizeIs(20));
  EXPECT_THAT(table.CheckConsistency(), IsOk());
}

TEST(ReadinessTable, ForgetsTheOldestOfTooManyFailuresOfOneName) {
  ReadinessTotals totals(2);
  ReadinessTable table(ProcessSetId{0}, MemberList::All(2), {}, totals);
  std::vector<FailedTensor> failed;
  for (size_t i = 0; i < 2 * Tombstones::kMaxPerName; ++i) {
    table.Report(Rank{0}, Gradient("a", {1}), kStart, failed);
    table.Withdraw(Rank{0}, "a", "again", failed);
  }
  EXPECT_EQ(table.tombstones(), static_cast<int64_t>(Tombstones::kMaxPerName));
  EXPECT_THAT(table.CheckConsistency(), IsOk());
}

}  // namespace
}  // namespace coordd
