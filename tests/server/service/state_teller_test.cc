#include "server/service/state_teller.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/service/caller_shares.h"
#include "server/service/inbox.h"
#include "tests/server/support/builders.h"
#include "tests/support/fake_clock.h"
#include "tests/support/start_time.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using testing::HasSubstr;
using Code = absl::StatusCode;

constexpr int kJobs = CoordinatorState::kLookedAtInTurn + 1;

struct Answer {
  explicit Answer(const std::string& who) : name(who) {}

  const std::string name;
  Role role = Role::kViewer;
  v1::GetStateRequest request;
  v1::ServerState state;
  bool is_cancelled = false, is_finished = false;
  absl::Duration each_takes = StateTeller::kTurn;  // of its parts
  absl::Status status;
};

class StateTellerTest : public testing::Test {
 protected:
  static ServerOptions Options() {
    ServerOptions options;
    options.max_jobs = options.max_jobs_per_owner = kJobs;
    return options;
  }
  StateTellerTest() {
    for (int job = 0; job < kJobs; ++job) {
      v1::WorkerMessage message;
      *message.mutable_join() = JoinOf("worker");
      message.mutable_join()->set_job(absl::StrCat("job", job));
      message.mutable_join()->mutable_host()->set_hostname(std::string(200, 'h'));
      Effects effects;
      state_.Step(SessionMessage{SessionId{job + 1}, message, nullptr}, kStart, effects);
    }
  }

  void Ask(Answer& answer) {
    teller_.Tell({.caller = std::make_shared<const Caller>(
                      Caller{.identity = {answer.role, answer.name}, .peer = "ipv4:10.0.0.1:1"}),
                  .request = &answer.request,
                  .state = &answer.state,
                  .is_cancelled =
                      [this, &answer] {
                        if (!answer.is_cancelled) clock_.Advance(answer.each_takes);
                        return answer.is_cancelled;
                      },
                  .finish =
                      [&answer](const absl::Status& status) {
                        EXPECT_FALSE(answer.is_finished);
                        answer.is_finished = true;
                        answer.status = status;
                      }});
  }
  // Returns how many questions it has answered.
  int TakeTurn() {
    std::vector<Inbox::Received> items;
    inbox_.TakeAll(items);
    for (const Inbox::Received& item : items) std::get<Query>(item.item)(state_, kStart);
    return static_cast<int>(items.size());
  }
  int TakeTurnsUntil(const Answer& answer) {
    int turns = 0;
    for (; !answer.is_finished; ++turns) EXPECT_EQ(TakeTurn(), 1);
    return turns;
  }

  FakeClock clock_;
  Inbox inbox_{clock_};
  CallerShares shares_{clock_};
  CoordinatorState state_{Options(), Epoch{7}};
  StateTeller teller_{shares_, inbox_};
  Answer alice_{"alice"}, bob_{"bob"};
};

TEST_F(StateTellerTest, ATurnTellsNoMoreThanAPart) {
  Ask(alice_);
  size_t told = 0;
  int turns = 0;
  for (; !alice_.is_finished; ++turns) {
    ASSERT_EQ(TakeTurn(), 1);
    EXPECT_LT(alice_.state.ByteSizeLong() - told, CoordinatorState::kDescribedInTurn * 5 / 4);
    told = alice_.state.ByteSizeLong();
  }
  EXPECT_GE(turns, 2);
  EXPECT_THAT(alice_.status, IsOk());
  EXPECT_EQ(alice_.state.jobs_size(), kJobs);
  EXPECT_EQ(alice_.state.epoch(), 7);
  EXPECT_EQ(TakeTurn(), 0);
}

TEST_F(StateTellerTest, TwoAreToldOneAfterTheOther) {
  Ask(alice_);
  Ask(bob_);
  const int turns = TakeTurnsUntil(alice_);
  EXPECT_FALSE(bob_.is_finished);
  EXPECT_EQ(TakeTurnsUntil(bob_), turns);
  EXPECT_EQ(bob_.state.jobs_size(), kJobs);
  EXPECT_EQ(TakeTurn(), 0);
}

TEST_F(StateTellerTest, PartsThatTakeNoTimeShareATurn) {
  alice_.each_takes = bob_.each_takes = absl::ZeroDuration();
  Ask(alice_);
  Ask(bob_);
  EXPECT_EQ(TakeTurnsUntil(alice_), 1);
  EXPECT_TRUE(bob_.is_finished);
  EXPECT_EQ(alice_.state.jobs_size(), kJobs);
  EXPECT_EQ(TakeTurn(), 0);
}

// However many of one caller's wait, another's is told after one of them.
TEST_F(StateTellerTest, CallersHaveTheirTurns) {
  std::deque<Answer> all;
  for (int i = 0; i < 4; ++i) Ask(all.emplace_back("alice"));
  Ask(bob_);
  TakeTurnsUntil(bob_);
  EXPECT_TRUE(all[0].is_finished);
  EXPECT_FALSE(all[1].is_finished);
  for (const Answer& one : all) TakeTurnsUntil(one);
}

TEST_F(StateTellerTest, ACallerHasSoManyWaitingAndThoseThatHaveGoneDoNotCount) {
  std::deque<Answer> all;
  for (size_t i = 0; i < StateTeller::kWaitingMax; ++i) Ask(all.emplace_back("alice"));
  Ask(all.emplace_back("alice"));
  EXPECT_EQ(all.back().status.code(), Code::kResourceExhausted);
  EXPECT_THAT(std::string(all.back().status.message()), HasSubstr("wait for it already"));
  Ask(bob_);
  EXPECT_FALSE(bob_.is_finished);
  for (size_t i = 1; i < StateTeller::kWaitingMax; ++i) all[i].is_cancelled = true;
  Ask(all.emplace_back("alice"));
  EXPECT_FALSE(all.back().is_finished);
  for (size_t i = 1; i < StateTeller::kWaitingMax; ++i)
    EXPECT_EQ(all[i].status.code(), Code::kCancelled) << i;
  TakeTurnsUntil(all.back());
  EXPECT_THAT(all.back().status, IsOk());
  EXPECT_THAT(bob_.status, IsOk());
}

// A thousand of them cost no turn each.
TEST_F(StateTellerTest, ThoseWhoHaveGoneShareATurn) {
  std::deque<Answer> all;
  for (int i = 0; i < 1000; ++i) Ask(all.emplace_back(absl::StrCat("caller", i)));
  for (Answer& one : all) one.is_cancelled = true;
  Answer last("last");
  Ask(last);
  EXPECT_LE(TakeTurnsUntil(last), 3);
  EXPECT_THAT(last.status, IsOk());
  for (const Answer& one : all) EXPECT_TRUE(one.is_finished);
  EXPECT_EQ(TakeTurn(), 0);
}

// Who may see none of very many jobs costs no long turn either.
TEST_F(StateTellerTest, JobsOfOthersAreLookedAtInParts) {
  alice_.role = Role::kLauncher;
  Ask(alice_);
  EXPECT_EQ(TakeTurnsUntil(alice_), 2);
  EXPECT_EQ(alice_.status.code(), Code::kPermissionDenied);
  EXPECT_EQ(alice_.state.jobs_size(), 0);
}

TEST_F(StateTellerTest, WhoHasLeftIsToldNoMore) {
  Ask(alice_);
  Ask(bob_);
  ASSERT_EQ(TakeTurn(), 1);
  alice_.is_cancelled = true;
  ASSERT_EQ(TakeTurn(), 1);
  EXPECT_EQ(alice_.status.code(), Code::kCancelled);
  TakeTurnsUntil(bob_);
  EXPECT_THAT(bob_.status, IsOk());
}

TEST_F(StateTellerTest, WhoHasHadItsShareIsToldNothing) {
  const Caller alice{.identity = {Role::kViewer, "alice"}, .peer = "ipv4:10.0.0.1:1"};
  ASSERT_THAT(shares_.InTurn(alice, {"GetState", ""}, [&] { clock_.Advance(absl::Seconds(5)); }),
              IsOk());
  Ask(alice_);
  EXPECT_EQ(TakeTurnsUntil(alice_), 1);
  EXPECT_EQ(alice_.status.code(), Code::kResourceExhausted);
  EXPECT_EQ(alice_.state.jobs_size(), 0);
}

TEST_F(StateTellerTest, WhatNoAnswerHoldsIsRefusedInASentence) {
  StateTeller teller(shares_, inbox_, /*bytes_max=*/size_t{1} << 18);
  teller.Tell({.caller = std::make_shared<const Caller>(
                   Caller{.identity = {Role::kViewer, "alice"}, .peer = "ipv4:10.0.0.1:1"}),
               .request = &alice_.request,
               .state = &alice_.state,
               .is_cancelled = [] { return false; },
               .finish =
                   [this](const absl::Status& status) {
                     alice_.is_finished = true;
                     alice_.status = status;
                   }});
  TakeTurnsUntil(alice_);
  EXPECT_EQ(alice_.status.code(), Code::kResourceExhausted);
  EXPECT_THAT(std::string(alice_.status.message()), HasSubstr("ask for one job by its name"));
  EXPECT_EQ(alice_.state.jobs_size(), 0);
}

TEST_F(StateTellerTest, AllWhoWaitAreAnsweredWhenCoorddStops) {
  Ask(alice_);
  Ask(bob_);
  inbox_.Close();
  ASSERT_EQ(TakeTurn(), 1);
  for (const Answer* one : {&alice_, &bob_}) {
    EXPECT_TRUE(one->is_finished);
    EXPECT_EQ(one->status.code(), Code::kUnavailable);
  }
  Answer late("carol");
  Ask(late);
  EXPECT_EQ(late.status.code(), Code::kUnavailable);
}

}  // namespace
}  // namespace coordd
