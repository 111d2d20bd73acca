#include "server/generation/named_set_requests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

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

ProcessSetProposal AddNamed(const std::string& name, std::vector<int32_t> ranks) {
  return {.remove = {}, .ranks = Ranks(std::move(ranks)), .name = name};
}

class NamedSetRequestsTest : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_THAT(requests_.CheckConsistency(), IsOk()); }

  absl::Status Request(int32_t rank, const ProcessSetProposal& proposal, absl::Time now = kStart) {
    return Request(rank, proposal, proposal.ranks, now);
  }
  absl::Status Request(int32_t rank, const ProcessSetProposal& proposal,
                       const std::vector<Rank>& members, absl::Time now = kStart) {
    agreed_.reset();
    return requests_.Request(Rank{rank}, proposal, members, joined_, now, agreed_, failed_);
  }
  std::vector<FailedRequest> TakeFailed() { return std::exchange(failed_, {}); }

  const MemberList all_ = MemberList::All(4);
  NamedSetRequests requests_;
  RankSet joined_{all_};
  std::optional<AgreedRequest> agreed_;
  std::vector<FailedRequest> failed_;
};

auto NamedFailure(const std::string& name, Code code, const std::string& text,
                  std::vector<Rank> ranks) {
  return AllOf(
      Field(&FailedRequest::name, name), Field(&FailedRequest::number, 0),
      Field(&FailedRequest::ranks, ranks),
      Field(&FailedRequest::fault, Field(&TensorFault::status, StatusIs(code, HasSubstr(text)))));
}

TEST_F(NamedSetRequestsTest, AgreeWhenTheLastMemberHasAsked) {
  ASSERT_THAT(Request(3, AddNamed("tp", {1, 3})), IsOk());
  EXPECT_FALSE(agreed_.has_value());
  ASSERT_THAT(Request(1, AddNamed("tp", {1, 3})), IsOk());
  ASSERT_TRUE(agreed_.has_value());
  EXPECT_EQ(agreed_->proposal, AddNamed("tp", {1, 3}));
  EXPECT_EQ(agreed_->members, Ranks({1, 3}));
  EXPECT_THAT(failed_, IsEmpty());
  EXPECT_THAT(requests_, SizeIs(0));
}

TEST_F(NamedSetRequestsTest, ASetOfOneIsAgreedUponAtOnce) {
  ASSERT_THAT(Request(2, AddNamed("own", {2})), IsOk());
  EXPECT_TRUE(agreed_.has_value());
}

TEST_F(NamedSetRequestsTest, NamesHaveNoOrder) {
  ASSERT_THAT(Request(0, AddNamed("a", {0, 1})), IsOk());
  ASSERT_THAT(Request(0, AddNamed("b", {0, 1})), IsOk());
  ASSERT_THAT(Request(1, AddNamed("b", {0, 1})), IsOk());
  EXPECT_EQ(agreed_->proposal.name, "b");
  ASSERT_THAT(Request(1, AddNamed("a", {0, 1})), IsOk());
  EXPECT_EQ(agreed_->proposal.name, "a");
}

TEST_F(NamedSetRequestsTest, OtherRanksUnderANameFailForAllAndNameTwoRanks) {
  ASSERT_THAT(Request(0, AddNamed("tp", {0, 1, 2})), IsOk());
  ASSERT_THAT(Request(1, AddNamed("tp", {1, 3})), IsOk());
  EXPECT_FALSE(agreed_.has_value());
  EXPECT_THAT(TakeFailed(), ElementsAre(NamedFailure(
                                "tp", Code::kInvalidArgument,
                                "process set tp: rank 1 asks for it of ranks [1, 3], rank 0 of "
                                "ranks [0, 1, 2]",
                                Ranks({0, 1}))));
  // Whoever is in either list hears of it when it asks.
  ASSERT_THAT(Request(3, AddNamed("tp", {1, 3})), IsOk());
  ASSERT_THAT(Request(2, AddNamed("tp", {0, 1, 2})), IsOk());
  EXPECT_THAT(TakeFailed(),
              ElementsAre(NamedFailure("tp", Code::kInvalidArgument, "rank 1 asks", Ranks({3})),
                          NamedFailure("tp", Code::kInvalidArgument, "rank 1 asks", Ranks({2}))));
  EXPECT_THAT(requests_, SizeIs(0));
}

TEST_F(NamedSetRequestsTest, WhoHasHeardOfAFailureBeginsAnew) {
  ASSERT_THAT(Request(0, AddNamed("tp", {0, 1})), IsOk());
  requests_.Withdraw(Rank{0}, "tp", failed_);
  EXPECT_THAT(TakeFailed(), ElementsAre(NamedFailure(
                                "tp", Code::kCancelled,
                                "process set tp of ranks [0, 1]: rank 0 withdrew it; not made by "
                                "rank 1",
                                Ranks({0}))));
  ASSERT_THAT(Request(0, AddNamed("tp", {0, 1})), IsOk());
  ASSERT_THAT(Request(1, AddNamed("tp", {0, 1})), IsOk());
  EXPECT_TRUE(agreed_.has_value());
  EXPECT_THAT(failed_, IsEmpty());
}

TEST_F(NamedSetRequestsTest, AWithdrawalOfWhatIsAnsweredIsNothing) {
  requests_.Withdraw(Rank{0}, "tp", failed_);
  ASSERT_THAT(Request(0, AddNamed("tp", {0, 1})), IsOk());
  requests_.Withdraw(Rank{1}, "tp", failed_);
  requests_.Withdraw(Rank{3}, "tp", failed_);
  EXPECT_THAT(failed_, IsEmpty());
}

TEST_F(NamedSetRequestsTest, ARankThatAsksTwiceBreaksTheProtocol) {
  ASSERT_THAT(Request(0, AddNamed("tp", {0, 1})), IsOk());
  EXPECT_THAT(Request(0, AddNamed("tp", {0, 1})),
              StatusIs(Code::kInvalidArgument, HasSubstr("twice")));
}

TEST_F(NamedSetRequestsTest, StallsAreToldOnceAndFailLater) {
  ASSERT_THAT(Request(0, AddNamed("tp", {0, 1, 2})), IsOk());
  const absl::Duration warning = absl::Seconds(10), abort = absl::Seconds(60);
  EXPECT_EQ(requests_.NextStall(warning, abort), kStart + warning);
  std::vector<PendingRequest> stalled;
  requests_.NewlyStalled(kStart + warning, warning, stalled);
  requests_.NewlyStalled(kStart + warning, warning, stalled);
  ASSERT_THAT(stalled, SizeIs(1));
  EXPECT_EQ(stalled[0].title, "process set tp of ranks [0, 1, 2]");
  EXPECT_EQ(stalled[0].missing, Ranks({1, 2}));
  EXPECT_EQ(requests_.NextStall(warning, abort), kStart + abort);
  requests_.FailOlderThan(kStart + abort, abort, failed_);
  EXPECT_THAT(TakeFailed(), ElementsAre(NamedFailure("tp", Code::kDeadlineExceeded,
                                                     "made by rank 0, but not by ranks 1, 2 within",
                                                     Ranks({0}))));
  EXPECT_EQ(requests_.NextStall(warning, abort), absl::InfiniteFuture());
  // Who comes late hears why nobody waits any more.
  ASSERT_THAT(Request(1, AddNamed("tp", {0, 1, 2})), IsOk());
  EXPECT_THAT(failed_, SizeIs(1));
}

TEST_F(NamedSetRequestsTest, ARankThatHasJoinedIsNamedAndNothingIsOwedBehindTheJoin) {
  ASSERT_THAT(Request(0, AddNamed("tp", {0, 1})), IsOk());
  ASSERT_THAT(Request(0, AddNamed("others", {0, 2})), IsOk());
  joined_.Insert(Rank{1});
  requests_.Joined(Rank{1}, failed_);
  EXPECT_THAT(TakeFailed(), ElementsAre(NamedFailure("tp", Code::kFailedPrecondition,
                                                     "rank 1 has joined", Ranks({0}))));
  ASSERT_THAT(Request(0, AddNamed("tp", {0, 1})), IsOk());
  EXPECT_THAT(TakeFailed(), ElementsAre(NamedFailure("tp", Code::kFailedPrecondition,
                                                     "rank 1 has joined", Ranks({0}))));
  joined_.Clear();
  ASSERT_THAT(Request(1, AddNamed("tp", {0, 1})), IsOk());
  ASSERT_THAT(Request(0, AddNamed("tp", {0, 1})), IsOk());
  EXPECT_TRUE(agreed_.has_value());
}

TEST_F(NamedSetRequestsTest, TheEndOfASetIsAgreedUponByItsMembers) {
  const ProcessSetProposal end{.remove = ProcessSetId{7}, .ranks = {}, .name = "tp"};
  ASSERT_THAT(Request(0, end, Ranks({0, 1})), IsOk());
  ASSERT_THAT(Request(1, end, Ranks({0, 1})), IsOk());
  ASSERT_TRUE(agreed_.has_value());
  EXPECT_EQ(agreed_->proposal, end);
  EXPECT_EQ(agreed_->members, Ranks({0, 1}));
}

TEST_F(NamedSetRequestsTest, FailedOnesMakeRoomWhereThereIsNone) {
  for (size_t i = 0; i < NamedSetRequests::kMaxOpen; ++i)
    ASSERT_THAT(Request(0, AddNamed(absl::StrCat("set", i), {0, 1})), IsOk());
  ASSERT_THAT(Request(0, AddNamed("one more", {0, 1})), IsOk());
  EXPECT_THAT(TakeFailed(),
              ElementsAre(NamedFailure("one more", Code::kResourceExhausted,
                                       "have not asked for 4096 others", Ranks({0}))));
  requests_.Withdraw(Rank{0}, "set7", failed_);
  TakeFailed();
  ASSERT_THAT(Request(0, AddNamed("one more", {0, 1})), IsOk());
  EXPECT_THAT(failed_, IsEmpty());
}

TEST_F(NamedSetRequestsTest, TakeOfTheOwnersBytesUntilTheyAreAnswered) {
  const auto budget = std::make_shared<ByteBudget>(64 << 10);
  NamedSetRequests requests(budget);
  const std::string name(256, 'n');
  const auto ask = [&](int number) {
    const ProcessSetProposal proposal = AddNamed(absl::StrCat(name, number), {0, 1});
    return requests.Request(Rank{0}, proposal, proposal.ranks, joined_, kStart, agreed_, failed_);
  };
  for (int number = 0; number < 1000; ++number) ASSERT_THAT(ask(number), IsOk());
  EXPECT_GT(requests.size(), 20u);
  EXPECT_LT(requests.size(), 100u) << "a name has 256 bytes and stands there three times";
  ASSERT_FALSE(failed_.empty());
  EXPECT_THAT(failed_.front().fault.status,
              StatusIs(Code::kResourceExhausted, HasSubstr("--max-bytes-per-owner")));
  EXPECT_LE(budget->used(), budget->limit());
  const size_t open = requests.size();
  for (size_t number = 0; number < open; ++number)
    requests.Withdraw(Rank{0}, absl::StrCat(name, number), failed_);
  TakeFailed();
  ASSERT_THAT(ask(5000), IsOk());
  EXPECT_THAT(failed_, IsEmpty()) << "what has failed makes room";
  EXPECT_THAT(requests, SizeIs(1));
  EXPECT_THAT(requests.CheckConsistency(), IsOk());
}

// A rank that asks for a set of all beside one that asks for it of two.
TEST_F(NamedSetRequestsTest, CountWhoIsStillToHearOfAFailureAndIsNoMember) {
  const MemberList many = MemberList::All(4096);
  const RankSet joined(many);
  const auto budget = std::make_shared<ByteBudget>(1 << 20);
  NamedSetRequests requests(budget);
  for (int number = 0; number < 1000; ++number) {
    const ProcessSetProposal two = AddNamed(absl::StrCat("n", number), {0, 1});
    const ProcessSetProposal all{.remove = {}, .ranks = many.Ranks(), .name = two.name};
    ASSERT_THAT(requests.Request(Rank{0}, two, two.ranks, joined, kStart, agreed_, failed_),
                IsOk());
    ASSERT_THAT(requests.Request(Rank{1}, all, all.ranks, joined, kStart, agreed_, failed_),
                IsOk());
    ASSERT_LE(budget->used(), budget->limit());
  }
  EXPECT_THAT(requests.CheckConsistency(), IsOk());
  TakeFailed();
  const ProcessSetProposal fresh = AddNamed("n999", {7});
  ASSERT_THAT(requests.Request(Rank{7}, fresh, fresh.ranks, joined, kStart, agreed_, failed_),
              IsOk());
  EXPECT_THAT(requests.CheckConsistency(), IsOk());
}

}  // namespace
}  // namespace coordd
