#include "server/generation/join_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/support/builders.h"
#include "tests/support/start_time.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Code = absl::StatusCode;
using Outcome = JoinState::Outcome;

class JoinStateTest : public ::testing::Test {
 protected:
  Outcome Join(int32_t rank, absl::Time now = kStart) {
    return join_.Join(Rank{rank}, now, failed_);
  }
  std::vector<FailedTensor> TakeFailed() { return std::exchange(failed_, {}); }

  const MemberList all_ = MemberList::All(3);
  JoinState join_{all_};
  std::vector<FailedTensor> failed_;
};

auto Failure(Code code, const std::string& text, std::vector<Rank> ranks) {
  return ::testing::AllOf(
      Field(&FailedTensor::name, "join"), Field(&FailedTensor::ranks, ranks),
      Field(&FailedTensor::fault, Field(&TensorFault::status, StatusIs(code, HasSubstr(text)))));
}

TEST_F(JoinStateTest, IsCompleteWithTheLastRankAndBeginsAnew) {
  EXPECT_EQ(Join(2), Outcome::kJoined);
  EXPECT_EQ(Join(0), Outcome::kJoined);
  EXPECT_TRUE(join_.Contains(Rank{2}));
  EXPECT_FALSE(join_.Contains(Rank{1}));
  EXPECT_EQ(Join(1), Outcome::kComplete);
  EXPECT_TRUE(join_.joined().empty());
  EXPECT_EQ(Join(1), Outcome::kJoined);
  EXPECT_THAT(failed_, IsEmpty());
}

TEST_F(JoinStateTest, AloneARankIsTheLast) {
  const MemberList one = MemberList::All(1);
  JoinState alone(one);
  EXPECT_EQ(alone.Join(Rank{0}, kStart, failed_), Outcome::kComplete);
}

TEST_F(JoinStateTest, AWithdrawalEndsItForThoseWhoJoinedAndThoseWhoWill) {
  Join(0);
  Join(1);
  EXPECT_FALSE(join_.Withdraw(Rank{2}, "never joined", failed_));
  EXPECT_TRUE(join_.Withdraw(Rank{1}, "its deadline passed", failed_));
  EXPECT_THAT(TakeFailed(),
              ElementsAre(Failure(Code::kCancelled,
                                  "rank 1 withdrew it: its deadline passed; not joined by rank 2",
                                  Ranks({0, 1}))));
  EXPECT_TRUE(join_.joined().empty());
  EXPECT_EQ(Join(0), Outcome::kJoined);  // a retry, before rank 2 has heard
  EXPECT_EQ(Join(2), Outcome::kRefused);
  EXPECT_THAT(TakeFailed(), ElementsAre(Failure(Code::kCancelled, "rank 1 withdrew", Ranks({2}))));
  EXPECT_TRUE(join_.Contains(Rank{0}));
  EXPECT_EQ(Join(2), Outcome::kJoined);
}

TEST_F(JoinStateTest, JoiningTwiceEndsItWithTwoAnswers) {
  Join(0);
  Join(1);
  EXPECT_EQ(Join(0), Outcome::kFailed);
  EXPECT_THAT(TakeFailed(),
              ElementsAre(Failure(Code::kAlreadyExists, "rank 0 has joined already", Ranks({0, 1})),
                          Failure(Code::kAlreadyExists, "rank 0", Ranks({0}))));
  EXPECT_TRUE(join_.joined().empty());
}

TEST_F(JoinStateTest, IsNoStallWhileOthersGoOn) {
  const absl::Duration warning = absl::Seconds(10);
  const absl::Duration abort = absl::Minutes(1);
  EXPECT_EQ(join_.NextSilence(warning, abort), absl::InfiniteFuture());
  Join(0);
  for (int second = 0; second < 1000; second += 9) {
    const absl::Time now = kStart + absl::Seconds(second);
    ASSERT_FALSE(join_.NewlySilent(now, warning).has_value());
    ASSERT_FALSE(join_.FailSilence(now, abort, failed_));
    join_.Heard(now);
  }
}

TEST_F(JoinStateTest, SilenceOfTheOthersIsToldAndEndsIt) {
  const absl::Duration warning = absl::Seconds(10);
  const absl::Duration abort = absl::Minutes(1);
  Join(0);
  join_.Heard(kStart + absl::Seconds(5));
  const absl::Time told = kStart + absl::Seconds(15);
  EXPECT_EQ(join_.NextSilence(warning, abort), told);
  const auto silent = join_.NewlySilent(told, warning);
  ASSERT_TRUE(silent.has_value());
  EXPECT_THAT(silent->missing, ElementsAre(Rank{1}, Rank{2}));
  EXPECT_FALSE(join_.NewlySilent(told, warning).has_value()) << "told once";
  EXPECT_EQ(join_.NextSilence(warning, abort), kStart + absl::Seconds(65));
  join_.Heard(told);
  EXPECT_EQ(join_.NextSilence(warning, abort), told + warning) << "another silence";
  EXPECT_FALSE(join_.FailSilence(kStart + absl::Seconds(65), abort, failed_));
  EXPECT_TRUE(join_.FailSilence(told + abort, abort, failed_));
  EXPECT_THAT(TakeFailed(),
              ElementsAre(Failure(Code::kDeadlineExceeded,
                                  "joined by rank 0, and nothing came from ranks 1, 2 within 1m",
                                  Ranks({0}))));
  EXPECT_EQ(join_.NextSilence(warning, abort), absl::InfiniteFuture());
}

TEST_F(JoinStateTest, SleepOfTheCoordinatorIsNoSilence) {
  Join(0);
  join_.Forgive(absl::Hours(1));
  EXPECT_FALSE(join_.FailSilence(kStart + absl::Hours(1), absl::Minutes(5), failed_));
}

}  // namespace
}  // namespace coordd
