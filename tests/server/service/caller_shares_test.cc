#include "server/service/caller_shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <prometheus/registry.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/bounded_queue.h"
#include "server/metrics/server_metrics.h"
#include "server/service/coordinator.h"
#include "tests/support/fake_clock.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using testing::Eq;
using testing::HasSubstr;
using testing::StartsWith;

constexpr CallerShares::Asked kAsked = {"DeletePrefix", "train"};

Caller Named(Role role, const std::string& name, const std::string& peer = "ipv4:10.0.0.1:4711") {
  Caller caller;
  caller.identity = {.role = role, .name = name};
  caller.peer = peer;
  return caller;
}

class CallerSharesTest : public testing::Test {
 protected:
  absl::Status Take(const Caller& caller, absl::Duration time) {
    return shares_.InTurn(caller, kAsked, [&] { clock_.Advance(time); });
  }

  FakeClock clock_;
  CallerShares shares_{clock_};
  const Caller alice_ = Named(Role::kLauncher, "alice"), bob_ = Named(Role::kLauncher, "bob");
};

TEST_F(CallerSharesTest, WhatIsQuickIsFree) {
  for (int i = 0; i < 10000; ++i) ASSERT_THAT(Take(alice_, CallerShares::kFree), IsOk());
}

TEST_F(CallerSharesTest, WhoTakesLongWaitsAndOthersDoNot) {
  ASSERT_THAT(Take(alice_, CallerShares::kTurns + absl::Seconds(1)), IsOk());
  bool done = false;
  const absl::Status refused = shares_.InTurn(alice_, kAsked, [&] { done = true; });
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(
      std::string(refused.message()),
      StartsWith(
          "DeletePrefix of job train was not carried out: what launcher/alice has called has "
          "taken coordd 879ms longer than it may, 200ms at once and then 10 % of the time: try "
          "again in 8.791s"));
  EXPECT_FALSE(done);
  EXPECT_THAT(Take(bob_, absl::ZeroDuration()), IsOk());
  // By whichever of its connections.
  EXPECT_FALSE(Take(Named(Role::kLauncher, "alice", "ipv4:10.0.0.9:1"), absl::ZeroDuration()).ok());
  clock_.Advance(absl::Seconds(11));
  EXPECT_THAT(Take(alice_, absl::ZeroDuration()), IsOk());
}

TEST_F(CallerSharesTest, WhatWasBegunGoesOnAndAllOfItCounts) {
  ASSERT_THAT(Take(alice_, absl::ZeroDuration()), IsOk());
  int parts = 0;
  for (absl::Duration taken; taken <= CallerShares::kTurns; taken += CallerShares::kFree) {
    shares_.GoOn(alice_, [&] { clock_.Advance(CallerShares::kFree), ++parts; });
  }
  EXPECT_EQ(parts, CallerShares::kTurns / CallerShares::kFree + 1);
  for (int i = 0; i < parts; ++i)
    shares_.GoOn(alice_, [&] { clock_.Advance(CallerShares::kFree); });
  EXPECT_EQ(Take(alice_, absl::ZeroDuration()).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Take(bob_, absl::ZeroDuration()), IsOk());
}

TEST_F(CallerSharesTest, ARefusalOfACallForAllJobsSaysSo) {
  ASSERT_THAT(Take(alice_, absl::Seconds(5)), IsOk());
  EXPECT_THAT(shares_.InTurn(alice_, {"GetState", ""}, [] {}).message(),
              HasSubstr("GetState of all jobs was not carried out"));
}

TEST_F(CallerSharesTest, WithoutTlsAnAddressHasAShare) {
  Caller one, other, elsewhere;
  for (Caller* caller : {&one, &other, &elsewhere}) caller->identity = WithoutTls();
  one.peer = "ipv4:10.0.0.1:1";
  other.peer = "ipv4:10.0.0.1:2";
  elsewhere.peer = "ipv4:10.0.0.2:1";
  ASSERT_THAT(Take(one, absl::Seconds(5)), IsOk());
  EXPECT_FALSE(Take(other, absl::ZeroDuration()).ok());
  EXPECT_THAT(Take(elsewhere, absl::ZeroDuration()), IsOk());
}

TEST_F(CallerSharesTest, AnswersCountUntilTheyAreOver) {
  std::vector<CallerShares::AnswerBytes> held;
  constexpr int64_t kEach = 1 << 20;
  for (int64_t i = 0; i < CallerShares::kAnswerBytes / kEach; ++i) {
    auto one = shares_.HoldAnswer(alice_, kAsked, kEach);
    ASSERT_THAT(one.status(), IsOk());
    held.push_back(*std::move(one));
  }
  EXPECT_THAT(
      shares_.HoldAnswer(alice_, kAsked, kEach).status().message(),
      Eq("the answer to DeletePrefix of job train, 1048576 bytes, is left out: launcher/alice has "
         "not read 67108864 bytes of its answers, the most are 67108864"));
  EXPECT_THAT(shares_.HoldAnswer(bob_, kAsked, kEach).status(), IsOk());
  EXPECT_THAT(shares_.HoldAnswer(alice_, kAsked, CallerShares::kCountedBytes - 1).status(), IsOk());
  held.pop_back();
  EXPECT_THAT(shares_.HoldAnswer(alice_, kAsked, kEach).status(), IsOk());
}

TEST_F(CallerSharesTest, AllTogetherHaveABoundAndOneLargeAnswerIsLetThrough) {
  std::vector<CallerShares::AnswerBytes> held;
  auto large = shares_.HoldAnswer(alice_, kAsked, 2 * CallerShares::kAllAnswerBytes);
  ASSERT_THAT(large.status(), IsOk());
  EXPECT_THAT(
      shares_.HoldAnswer(bob_, kAsked, 1 << 20).status().message(),
      Eq("the answer to DeletePrefix of job train, 1048576 bytes, is left out: all who call have "
         "not read 536870912 bytes of their answers, the most are 268435456"));
  *large = CallerShares::AnswerBytes();
  EXPECT_THAT(shares_.HoldAnswer(bob_, kAsked, 1 << 20).status(), IsOk());
}

TEST_F(CallerSharesTest, ACallOfTheStoreBeyondTheShareIsAnsweredAndNotCarriedOut) {
  prometheus::Registry registry;
  ServerMetrics metrics(registry, clock_.Now());
  Coordinator coordinator(ServerOptions(), Epoch{1}, clock_, metrics);
  BoundedQueue<StoreReply> replies(8, Clock::Real());
  coordinator.Start({.deliver = [](const Deliver&) {},
                     .close_session = [](const CloseSession&) {},
                     .session_ended = [](SessionId) {},
                     .store_reply = [&](StoreReply&& reply) { replies.TryPush(std::move(reply)); },
                     .event = [](const Event&) {},
                     .tick = [](absl::Time) {},
                     .next_deadline = [] { return absl::InfiniteFuture(); },
                     .shares = &shares_});
  const auto ask = [&](const Caller& caller) {
    coordinator.inbox().Push(Inbound(StoreCall{CallId{7}, "train", "secret", StoreCount{"k"},
                                               std::make_shared<const Caller>(caller)}));
    std::vector<StoreReply> taken = replies.TakeAll(Clock::Real().Now() + absl::Minutes(1));
    return taken.size() == 1 ? taken[0].status : absl::InternalError("no answer, or several");
  };
  // There is no such job, which only who looks can say.
  EXPECT_EQ(ask(alice_).code(), absl::StatusCode::kNotFound);
  ASSERT_THAT(Take(alice_, absl::Seconds(5)), IsOk());
  EXPECT_THAT(ask(alice_), StatusIs(absl::StatusCode::kResourceExhausted,
                                    HasSubstr("Count of job train was not")));
  EXPECT_EQ(ask(bob_).code(), absl::StatusCode::kNotFound);
  coordinator.Stop("the test is over");
}

TEST_F(CallerSharesTest, AReportOfExitsBeyondTheShareIsAnsweredAndNotCarriedOut) {
  prometheus::Registry registry;
  ServerMetrics metrics(registry, clock_.Now());
  Coordinator coordinator(ServerOptions(), Epoch{1}, clock_, metrics);
  BoundedQueue<ExitsAnswer> answers(8, Clock::Real());
  coordinator.Start({.deliver = [](const Deliver&) {},
                     .close_session = [](const CloseSession&) {},
                     .session_ended = [](SessionId) {},
                     .store_reply = [](StoreReply&&) {},
                     .exits_answer = [&](ExitsAnswer&& in) { answers.TryPush(std::move(in)); },
                     .event = [](const Event&) {},
                     .tick = [](absl::Time) {},
                     .next_deadline = [] { return absl::InfiniteFuture(); },
                     .shares = &shares_});
  const auto report = [&](const Caller& caller) {
    v1::ReportExitsRequest request;
    request.set_job("train");
    coordinator.inbox().Push(Inbound(
        ExitsReported{CallId{7}, std::move(request), std::make_shared<const Caller>(caller)}));
    std::vector<ExitsAnswer> taken = answers.TakeAll(Clock::Real().Now() + absl::Minutes(1));
    return taken.size() == 1 ? taken[0].status : absl::InternalError("no answer, or several");
  };
  EXPECT_EQ(report(alice_).code(), absl::StatusCode::kNotFound);
  ASSERT_THAT(Take(alice_, absl::Seconds(5)), IsOk());
  EXPECT_THAT(report(alice_), StatusIs(absl::StatusCode::kResourceExhausted,
                                       HasSubstr("ReportExits of job train was not")));
  EXPECT_EQ(report(bob_).code(), absl::StatusCode::kNotFound);
  coordinator.Stop("the test is over");
}

TEST_F(CallerSharesTest, AnAnswerMayOutliveThem) {
  std::optional<CallerShares> shares(std::in_place, clock_);
  auto held = shares->HoldAnswer(alice_, kAsked, 1 << 20);
  shares.reset();
  EXPECT_THAT(held.status(), IsOk());
}

}  // namespace
}  // namespace coordd
