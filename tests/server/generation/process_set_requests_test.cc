#include "server/generation/process_set_requests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/generation/process_sets.h"
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
using ::testing::Not;
using Code = absl::StatusCode;

const ProcessSetProposal kAdd01{.remove = {}, .ranks = Ranks({0, 1})};
const ProcessSetProposal kAdd02{.remove = {}, .ranks = Ranks({0, 2})};
const ProcessSetProposal kRemove7{.remove = ProcessSetId{7}, .ranks = {}};

class ProcessSetRequestsTest : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_THAT(requests_.CheckConsistency(), IsOk()); }

  absl::Status Request(int32_t rank, int64_t number, const ProcessSetProposal& proposal,
                       absl::Time now = kStart) {
    agreed_.reset();
    return requests_.Request(Rank{rank}, number, proposal, joined_, now, agreed_, failed_);
  }
  std::vector<FailedRequest> TakeFailed() { return std::exchange(failed_, {}); }

  const MemberList all_ = MemberList::All(3);
  ProcessSetRequests requests_{all_};
  RankSet joined_{all_};
  std::optional<AgreedRequest> agreed_;
  std::vector<FailedRequest> failed_;
};

auto Failure(int64_t number, Code code, const std::string& text, std::vector<Rank> ranks) {
  return AllOf(
      Field(&FailedRequest::number, number), Field(&FailedRequest::ranks, ranks),
      Field(&FailedRequest::fault, Field(&TensorFault::status, StatusIs(code, HasSubstr(text)))));
}

TEST_F(ProcessSetRequestsTest, AgreeWhenTheLastRankHasAsked) {
  ASSERT_THAT(Request(0, 1, kAdd01), IsOk());
  ASSERT_THAT(Request(2, 1, kAdd01), IsOk());
  EXPECT_FALSE(agreed_.has_value());
  ASSERT_THAT(Request(1, 1, kAdd01), IsOk());
  ASSERT_TRUE(agreed_.has_value());
  EXPECT_EQ(agreed_->number, 1);
  EXPECT_EQ(agreed_->proposal, kAdd01);
  EXPECT_THAT(failed_, IsEmpty());
}

TEST_F(ProcessSetRequestsTest, ARemovalThatSomeHaveHeardIsAnsweredToTheRest) {
  requests_.Restore({1, 1, 2}, {{2, ProcessSetId{7}}}, kStart);
  ASSERT_THAT(Request(0, 2, kRemove7), IsOk());
  EXPECT_FALSE(agreed_.has_value());
  EXPECT_THAT(requests_.EndedForSome(), ElementsAre(ProcessSetId{7}));
  ASSERT_THAT(Request(1, 2, kRemove7), IsOk());
  ASSERT_TRUE(agreed_.has_value());
  EXPECT_THAT(requests_.EndedForSome(), IsEmpty());
  EXPECT_EQ(agreed_->proposal, kRemove7);
  EXPECT_EQ(agreed_->told, Ranks({2}));
  EXPECT_THAT(failed_, IsEmpty());
}

TEST_F(ProcessSetRequestsTest, WhoHasHeardOfARemovalHearsOfNoFailure) {
  requests_.Restore({1, 1, 2}, {{2, ProcessSetId{7}}}, kStart);
  ASSERT_THAT(Request(0, 2, kRemove7), IsOk());
  requests_.FailOlderThan(kStart + absl::Seconds(9), absl::Seconds(10), failed_);
  EXPECT_THAT(failed_, IsEmpty()) << "its time runs from the restart on";
  ASSERT_THAT(Request(1, 2, kAdd01), IsOk());
  EXPECT_THAT(failed_,
              ElementsAre(Failure(2, Code::kInvalidArgument, "to remove 7", Ranks({0, 1}))));
}

TEST_F(ProcessSetRequestsTest, WhatSomeHaveAnAnswerToHasFailedForTheRest) {
  requests_.Restore({1, 1, 2}, {}, kStart);
  ASSERT_THAT(Request(0, 2, kAdd01), IsOk());
  EXPECT_THAT(TakeFailed(), ElementsAre(Failure(2, Code::kAborted, "had failed", Ranks({0}))));
  ASSERT_THAT(Request(1, 2, kAdd01), IsOk());
  EXPECT_FALSE(agreed_.has_value());
}

TEST_F(ProcessSetRequestsTest, MatchByOrderNotByWhatIsAsked) {
  for (int32_t rank : {0, 1}) {
    ASSERT_THAT(Request(rank, 1, kAdd01), IsOk());
    ASSERT_THAT(Request(rank, 2, kAdd02), IsOk());
  }
  ASSERT_THAT(Request(2, 1, kAdd01), IsOk());
  EXPECT_EQ(agreed_->proposal, kAdd01);
  ASSERT_THAT(Request(2, 2, kAdd02), IsOk());
  EXPECT_EQ(agreed_->proposal, kAdd02);
}

TEST_F(ProcessSetRequestsTest, AMismatchNamesBothRanksAndBothValuesForAll) {
  ASSERT_THAT(Request(0, 1, kAdd01), IsOk());
  ASSERT_THAT(Request(1, 1, kAdd02), IsOk());
  const std::string text = "process set request 1: rank 1 asks to add [0, 2], rank 0 to add [0, 1]";
  EXPECT_THAT(TakeFailed(), ElementsAre(Failure(1, Code::kInvalidArgument, text, Ranks({0, 1}))));
  ASSERT_THAT(Request(2, 1, kRemove7), IsOk());
  EXPECT_THAT(TakeFailed(), ElementsAre(Failure(1, Code::kInvalidArgument, text, Ranks({2}))));
  EXPECT_FALSE(agreed_.has_value());
}

TEST_F(ProcessSetRequestsTest, AMismatchBehindWhatIsListedIsPointedAt) {
  ProcessSetProposal first{.remove = {}, .ranks = MemberList::All(100).Ranks()};
  ProcessSetProposal second = first;
  second.ranks.erase(second.ranks.begin() + 70);
  ASSERT_THAT(Request(0, 1, first), IsOk());
  ASSERT_THAT(Request(1, 1, second), IsOk());
  EXPECT_THAT(TakeFailed(),
              ElementsAre(Failure(1, Code::kInvalidArgument,
                                  "; the first difference is rank 71 for rank 70 in place 70",
                                  Ranks({0, 1}))));
  second.ranks = first.ranks;
  second.ranks.pop_back();
  ASSERT_THAT(Request(0, 2, first), IsOk());
  ASSERT_THAT(Request(1, 2, second), IsOk());
  EXPECT_THAT(TakeFailed(), ElementsAre(Failure(2, Code::kInvalidArgument,
                                                "the end for rank 99 in place 99", Ranks({0, 1}))));
}

TEST_F(ProcessSetRequestsTest, AMismatchIsPointedAtAsSoonAsListsAreCut) {
  const auto mismatch = [this](int64_t number, size_t ranks) {
    ProcessSetProposal first{.remove = {}, .ranks = MemberList::All(100).Ranks()};
    first.ranks.resize(ranks);
    ProcessSetProposal second = first;
    second.ranks.pop_back();
    EXPECT_THAT(Request(0, number, first), IsOk());
    EXPECT_THAT(Request(1, number, second), IsOk());
    return TakeFailed();
  };
  EXPECT_THAT(mismatch(1, kListedRanks + 1),
              ElementsAre(Failure(1, Code::kInvalidArgument,
                                  "; the first difference is the end for rank 32 in place 32",
                                  Ranks({0, 1}))));
  const std::vector<FailedRequest> whole = mismatch(2, kListedRanks);
  ASSERT_EQ(whole.size(), 1u);
  EXPECT_THAT(whole[0].fault.status,
              StatusIs(Code::kInvalidArgument, Not(HasSubstr("difference"))));
}

TEST_F(ProcessSetRequestsTest, ARankThatRanAheadIsMatchedWithTheNextOnes) {
  ASSERT_THAT(Request(0, 1, kAdd01), IsOk());
  ASSERT_THAT(Request(0, 2, kRemove7), IsOk());
  ASSERT_THAT(Request(1, 1, kAdd02), IsOk());  // fails 1
  TakeFailed();
  ASSERT_THAT(Request(1, 2, kRemove7), IsOk());
  ASSERT_THAT(Request(2, 1, kAdd01), IsOk());
  EXPECT_THAT(TakeFailed(), ElementsAre(Failure(1, Code::kInvalidArgument, "", Ranks({2}))));
  ASSERT_THAT(Request(2, 2, kRemove7), IsOk());
  EXPECT_EQ(agreed_->number, 2);
}

TEST_F(ProcessSetRequestsTest, AWithdrawalIsHeardByAllOnce) {
  ASSERT_THAT(Request(0, 1, kAdd01), IsOk());
  ASSERT_THAT(requests_.Withdraw(Rank{0}, 1, failed_), IsOk());
  ASSERT_THAT(requests_.Withdraw(Rank{0}, 1, failed_), IsOk());
  EXPECT_THAT(TakeFailed(),
              ElementsAre(Failure(1, Code::kCancelled,
                                  "to add [0, 1]: rank 0 withdrew it; not made by ranks 1, 2",
                                  Ranks({0}))));
  ASSERT_THAT(Request(1, 1, kAdd01), IsOk());
  ASSERT_THAT(Request(2, 1, kAdd01), IsOk());
  EXPECT_THAT(TakeFailed(), ElementsAre(Failure(1, Code::kCancelled, "", Ranks({1})),
                                        Failure(1, Code::kCancelled, "", Ranks({2}))));
}

TEST_F(ProcessSetRequestsTest, AWithdrawalBehindTheAnswerIsNothing) {
  for (int32_t rank : {0, 1, 2}) ASSERT_THAT(Request(rank, 1, kAdd01), IsOk());
  EXPECT_THAT(requests_.Withdraw(Rank{1}, 1, failed_), IsOk());
  EXPECT_THAT(failed_, IsEmpty());
}

TEST_F(ProcessSetRequestsTest, NothingIsAgreedUponWhileARankHasJoined) {
  ASSERT_THAT(Request(0, 1, kAdd01), IsOk());
  joined_.Insert(Rank{1});
  requests_.Joined(Rank{1}, failed_);
  const std::string text = "request 1 to add [0, 1]: rank 1 has joined and takes part in none";
  EXPECT_THAT(TakeFailed(),
              ElementsAre(Failure(1, Code::kFailedPrecondition, text, Ranks({0, 1}))));
  ASSERT_THAT(Request(0, 2, kAdd02), IsOk());
  EXPECT_THAT(TakeFailed(),
              ElementsAre(Failure(2, Code::kFailedPrecondition, "request 2", Ranks({0, 1}))));
  // Who has asked for less, and joins, hears of the rest: all go on with the same request.
  ASSERT_THAT(Request(2, 1, kAdd01), IsOk());
  EXPECT_THAT(TakeFailed(), ElementsAre(Failure(1, Code::kFailedPrecondition, text, Ranks({2}))));
  requests_.Joined(Rank{2}, failed_);
  EXPECT_THAT(TakeFailed(),
              ElementsAre(Failure(2, Code::kFailedPrecondition, "request 2", Ranks({2}))));
  joined_ = RankSet(all_);
  for (int32_t rank : {1, 0, 2}) ASSERT_THAT(Request(rank, 3, kAdd02), IsOk());
  ASSERT_TRUE(agreed_.has_value());
  EXPECT_EQ(agreed_->number, 3);
}

TEST_F(ProcessSetRequestsTest, NumbersWithAGapBreakTheProtocol) {
  EXPECT_THAT(
      Request(1, 2, kAdd01),
      StatusIs(Code::kInvalidArgument, HasSubstr("request 2 of rank 1 follows its request 0")));
  ASSERT_THAT(Request(1, 1, kAdd01), IsOk());
  EXPECT_THAT(Request(1, 1, kAdd01), StatusIs(Code::kInvalidArgument, HasSubstr("follows")));
  EXPECT_THAT(requests_.Withdraw(Rank{1}, 2, failed_),
              StatusIs(Code::kInvalidArgument, HasSubstr("its last one was 1")));
  EXPECT_THAT(requests_.Withdraw(Rank{1}, 0, failed_),
              StatusIs(Code::kInvalidArgument, HasSubstr("0")));
}

TEST_F(ProcessSetRequestsTest, NoRankRunsAheadWithoutBound) {
  int64_t number = 0;
  absl::Status status;
  while (status.ok() && number < 10000) status = Request(0, ++number, kAdd01);
  EXPECT_THAT(status, StatusIs(Code::kResourceExhausted, HasSubstr("256")));
  EXPECT_EQ(number, static_cast<int64_t>(ProcessSetRequests::kMaxOpen) + 1);
}

TEST_F(ProcessSetRequestsTest, ARankThatDoesNotAskIsNamedAndEndsIt) {
  const absl::Duration warning = absl::Seconds(10);
  const absl::Duration abort = absl::Minutes(1);
  EXPECT_EQ(requests_.NextStall(warning, abort), absl::InfiniteFuture());
  ASSERT_THAT(Request(0, 1, kAdd01), IsOk());
  ASSERT_THAT(Request(2, 1, kAdd01), IsOk());
  EXPECT_EQ(requests_.NextStall(warning, abort), kStart + warning);
  EXPECT_THAT(requests_.NewlyStalled(kStart + absl::Seconds(9), warning), IsEmpty());
  EXPECT_THAT(
      requests_.NewlyStalled(kStart + warning, warning),
      ElementsAre(AllOf(Field(&PendingRequest::title, "process set request 1 to add [0, 1]"),
                        Field(&PendingRequest::missing, Ranks({1})))));
  EXPECT_THAT(requests_.NewlyStalled(kStart + warning, warning), IsEmpty()) << "told once";
  EXPECT_EQ(requests_.NextStall(warning, abort), kStart + abort);
  requests_.Forgive(absl::Seconds(1));
  requests_.FailOlderThan(kStart + abort, abort, failed_);
  EXPECT_THAT(failed_, IsEmpty());
  requests_.FailOlderThan(kStart + abort + absl::Seconds(1), abort, failed_);
  ASSERT_THAT(failed_, ElementsAre(Failure(1, Code::kDeadlineExceeded,
                                           "made by ranks 0, 2, but not by rank 1 within 1m",
                                           Ranks({0, 2}))));
  EXPECT_EQ(failed_.front().fault.blamed, Rank{1});
  EXPECT_EQ(requests_.NextStall(warning, abort), absl::InfiniteFuture());
}

// Those of many ranks: their numbers are most of it.
TEST_F(ProcessSetRequestsTest, TakeOfTheOwnersBytesUntilTheyAreAnswered) {
  const MemberList many = MemberList::All(1024);
  const RankSet joined(many);
  const auto budget = std::make_shared<ByteBudget>(64 << 10);
  ProcessSetRequests requests(many, budget);
  const ProcessSetProposal large{.remove = {}, .ranks = many.Ranks()};
  const auto ask = [&](int32_t rank, int64_t number) {
    return requests.Request(Rank{rank}, number, large, joined, kStart, agreed_, failed_);
  };
  for (int64_t number = 1; number <= 20; ++number) ASSERT_THAT(ask(0, number), IsOk());
  EXPECT_LE(budget->used(), budget->limit() + 8 * 1024) << "of those that were refused it is known";
  ASSERT_FALSE(failed_.empty());
  const FailedRequest refused = TakeFailed().front();
  EXPECT_THAT(refused, Failure(refused.number, Code::kResourceExhausted, "--max-bytes-per-owner",
                               {Rank{0}}));
  EXPECT_GT(refused.number, 10);
  EXPECT_THAT(requests.CheckConsistency(), IsOk());
  // It has failed for the others, too, whose order is the same.
  for (int64_t number = 1; number <= refused.number; ++number) ASSERT_THAT(ask(1, number), IsOk());
  EXPECT_THAT(TakeFailed(),
              ElementsAre(Failure(refused.number, Code::kResourceExhausted, "", {Rank{1}})));
  for (int64_t number = 1; number <= 3; ++number)
    ASSERT_THAT(requests.Withdraw(Rank{0}, number, failed_), IsOk());
  TakeFailed();
  ASSERT_THAT(ask(0, 21), IsOk());
  EXPECT_THAT(failed_, IsEmpty()) << "what has failed makes room";
  for (int32_t rank = 1; rank < many.size(); ++rank) {
    for (int64_t number = rank == 1 ? refused.number + 1 : 1; number <= 21; ++number)
      ASSERT_THAT(ask(rank, number), IsOk());
  }
  EXPECT_EQ(budget->used(), 0) << "all are answered";
  EXPECT_THAT(requests.CheckConsistency(), IsOk());
}

}  // namespace
}  // namespace coordd
