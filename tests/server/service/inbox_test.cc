#include "server/service/inbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/support/fake_clock.h"

namespace coordd {
namespace {

Inbox::Item Ended(int64_t session) { return Inbound(SessionEnded{SessionId(session), "gone"}); }

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<Inbox::Received> TakeNow(Inbox& inbox) {
  std::vector<Inbox::Received> taken;
  inbox.TakeAll(taken);
  return taken;
}

TEST(Inbox, TakesUpToItsCapacityAndLeavesTheRestToTheSender) {
  Inbox inbox(Clock::Real(), /*capacity=*/2);
  EXPECT_TRUE(inbox.Offer(Ended(1)));
  EXPECT_TRUE(inbox.Offer(Ended(2)));
  Inbox::Item third = Ended(3);
  EXPECT_FALSE(inbox.Offer(std::move(third)));
  EXPECT_EQ(std::get<SessionEnded>(std::get<Inbound>(third)).session, SessionId(3));
  EXPECT_EQ(TakeNow(inbox).size(), 2u);
  EXPECT_TRUE(inbox.Offer(std::move(third)));
}

TEST(Inbox, ResumesWhoWaitsForRoomAfterTheNextTurn) {
  Inbox inbox(Clock::Real(), /*capacity=*/1);
  EXPECT_TRUE(inbox.Offer(Ended(1)));
  int resumed = 0;
  EXPECT_TRUE(inbox.WaitForRoom({.resume = [&] { ++resumed; }}));
  TakeNow(inbox);
  for (const auto& resume : inbox.TakeWaiting()) resume();
  EXPECT_EQ(resumed, 1);
  EXPECT_TRUE(inbox.TakeWaiting().empty());
}

constexpr Inbox::Arrival kLarge{.size = {.bytes = Inbox::kTurnCost}};

TEST(Inbox, TakesOneLargeMessageATurnAndEverySmallOne) {
  Inbox inbox(Clock::Real());
  EXPECT_TRUE(inbox.Offer(Ended(1), {.size = {.bytes = 2 * Inbox::kTurnCost}}));
  EXPECT_FALSE(inbox.Offer(Ended(2), kLarge));
  EXPECT_TRUE(inbox.Offer(Ended(3), {.size = {.bytes = MessageSize::kSmallBytes}}));
  TakeNow(inbox);
  EXPECT_TRUE(inbox.Offer(Ended(2), kLarge));
}

// However few bytes said it: what the turn costs counts.
TEST(Inbox, TakesOfSmallMessagesWhatATurnMayCost) {
  Inbox inbox(Clock::Real());
  constexpr MessageSize kSmall{.bytes = 100, .told_bytes = MessageSize::kSmallCost};
  ASSERT_TRUE(kSmall.is_small());
  size_t taken = 0;
  while (inbox.Offer(Ended(1), {.size = kSmall})) ++taken;
  EXPECT_EQ(taken, Inbox::kSmallTurnCost / MessageSize::kSmallCost);
  EXPECT_TRUE(inbox.Offer(Ended(2), kLarge));  // those have room of their own
  TakeNow(inbox);
  EXPECT_TRUE(inbox.Offer(Ended(3), {.size = kSmall}));
}

TEST(Inbox, WhoComesNowDoesNotOvertakeWhoWaits) {
  Inbox inbox(Clock::Real());
  EXPECT_TRUE(inbox.Offer(Ended(1), kLarge));
  bool resumed = false;
  inbox.WaitForRoom({.size = {.bytes = Inbox::kTurnCost}, .resume = [&] {
                       resumed = inbox.Offer(
                           Ended(2), {.size = {.bytes = Inbox::kTurnCost}, .has_waited = true});
                     }});
  TakeNow(inbox);
  EXPECT_FALSE(inbox.Offer(Ended(3), kLarge));
  EXPECT_TRUE(inbox.Offer(Ended(4)));  // a small one is not in the way
  for (const auto& resume : inbox.TakeWaiting()) resume();
  EXPECT_TRUE(resumed);
}

// A call of the store, a question of an operator, /readyz.
TEST(Inbox, WhatCannotWaitIsTakenWhoeverDoes) {
  Inbox inbox(Clock::Real());
  inbox.WaitForRoom({.size = {.bytes = 0}, .resume = [] {}});
  EXPECT_FALSE(inbox.Offer(Ended(1), {.size = {.bytes = 0}}));
  EXPECT_TRUE(inbox.Offer(Ended(2)));
  EXPECT_TRUE(inbox.OfferAndTurn(Ended(3)));
}

// Who was called and has gone in the meantime offers nothing.
TEST(Inbox, HasAnotherTurnWhileSomebodyWaits) {
  Inbox inbox(Clock::Real());
  std::vector<int> resumed;
  for (int i : {1, 2}) {
    inbox.WaitForRoom(
        {.size = {.bytes = Inbox::kTurnCost}, .resume = [&resumed, i] { resumed.push_back(i); }});
  }
  for (int turn : {1, 2}) {
    ASSERT_TRUE(inbox.AwaitTurn());  // would wait for ever otherwise
    TakeNow(inbox);
    inbox.EndTurn({}, absl::InfiniteFuture());
    for (const auto& resume : inbox.TakeWaiting()) resume();
    EXPECT_EQ(resumed.size(), static_cast<size_t>(turn));
  }
}

TEST(Inbox, WakesTheCoordinatorForWhoWaitsAlsoWhenItHasJustTakenAll) {
  Inbox inbox(Clock::Real(), /*capacity=*/1);
  inbox.WaitForRoom({.resume = [] {}});
  EXPECT_FALSE(TakeNow(inbox).empty());  // would wait for ever otherwise
}

TEST(Inbox, AlwaysTakesWhatMustNotBeLost) {
  Inbox inbox(Clock::Real(), /*capacity=*/1);
  EXPECT_TRUE(inbox.Offer(Ended(1)));
  EXPECT_TRUE(inbox.Push(Ended(2)));
  inbox.Wake();
  EXPECT_EQ(TakeNow(inbox).size(), 3u);
}

TEST(Inbox, HandsOutWhatItTookAfterItsClose) {
  Inbox inbox(Clock::Real());
  EXPECT_TRUE(inbox.Push(Ended(1)));
  inbox.Close();
  EXPECT_FALSE(inbox.Offer(Ended(2)));
  EXPECT_FALSE(inbox.Push(Ended(3)));
  EXPECT_FALSE(inbox.WaitForRoom({.resume = [] {}}));
  EXPECT_TRUE(inbox.AwaitTurn());
  EXPECT_EQ(TakeNow(inbox).size(), 1u);
  inbox.EndTurn({}, absl::InfiniteFuture());
  EXPECT_FALSE(inbox.AwaitTurn());
}

// Three members, of whom each has to report before anything can be planned; nothing is due.
class InboxRoundTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // Nobody has said when the first one is due; the second one knows who the members are.
    for (absl::Time next : {absl::InfinitePast(), absl::InfiniteFuture()}) {
      ASSERT_TRUE(inbox_.AwaitTurn());
      TakeNow(inbox_);
      EndTurn(next);
    }
  }
  void EndTurn(absl::Time deadline = absl::InfiniteFuture()) {
    const MembersReports reports = {.generation = Generation{1},
                                    .members = &members_,
                                    .all_are_asked = true,
                                    .none_is_pending = true};
    inbox_.EndTurn({reports}, deadline);
  }
  bool Report(int64_t session) {
    SessionMessage message{.session = SessionId{session}, .message = {}};
    return inbox_.Offer(Inbound(std::move(message)), {}, {SessionId{session}});
  }
  static std::vector<int64_t> SessionsOf(const std::vector<Inbox::Received>& taken) {
    std::vector<int64_t> sessions;
    for (const Inbox::Received& one : taken) {
      const Inbound& in = std::get<Inbound>(one.item);
      const auto* message = std::get_if<SessionMessage>(&in);
      sessions.push_back(message != nullptr ? ToInt(message->session) : 0);
    }
    return sessions;
  }

  FakeClock clock_;
  Inbox inbox_{clock_};
  const std::vector<SessionId> members_ = {SessionId{1}, SessionId{2}, SessionId{3}};
};

TEST_F(InboxRoundTest, WhoBringsTheLastReportTakesTheTurnWithAllThatHaveWaited) {
  std::vector<std::vector<int64_t>> turns;
  inbox_.SetTurn([&] {
    turns.push_back(SessionsOf(TakeNow(inbox_)));
    EndTurn();
  });
  for (int64_t session : {3, 1}) EXPECT_TRUE(Report(session));
  EXPECT_THAT(turns, IsEmpty());
  EXPECT_TRUE(Report(2));
  EXPECT_THAT(turns, ElementsAre(ElementsAre(3, 1, 2)));
  for (int64_t session : {1, 2, 3}) EXPECT_TRUE(Report(session));
  EXPECT_THAT(turns, ElementsAre(ElementsAre(3, 1, 2), ElementsAre(1, 2, 3)));
  EXPECT_EQ(inbox_.size(), 0u);
}

TEST_F(InboxRoundTest, WhatWaitsIsSeenAfterAMomentWithTheTimeAtWhichItCame) {
  EXPECT_TRUE(Report(1));
  const absl::Time came = clock_.Now();
  clock_.Advance(Inbox::kHold);
  EXPECT_TRUE(inbox_.AwaitTurn());  // for ever otherwise
  const std::vector<Inbox::Received> taken = TakeNow(inbox_);
  EXPECT_THAT(SessionsOf(taken), ElementsAre(1));
  EXPECT_EQ(taken.at(0).at, came);
}

TEST_F(InboxRoundTest, WhatDoesNotWaitTakesAlongWhatDoesInOrder) {
  EXPECT_TRUE(Report(1));
  EXPECT_TRUE(inbox_.Offer(Ended(2)));
  EXPECT_TRUE(Report(3));
  EXPECT_TRUE(inbox_.AwaitTurn());
  EXPECT_THAT(SessionsOf(TakeNow(inbox_)), ElementsAre(1, 0, 3));
}

TEST_F(InboxRoundTest, NobodyTakesATurnWhileAnotherHasIt) {
  inbox_.SetTurn([] { FAIL() << "two at a time"; });
  inbox_.Wake();
  ASSERT_TRUE(inbox_.AwaitTurn());
  for (int64_t session : {1, 2, 3}) EXPECT_TRUE(Report(session));  // before it takes
  TakeNow(inbox_);
  for (int64_t session : {1, 2, 3}) EXPECT_TRUE(Report(session));  // and after
  EndTurn();
  EXPECT_TRUE(inbox_.AwaitTurn());  // for ever otherwise
  EXPECT_EQ(TakeNow(inbox_).size(), 3u);
}

TEST_F(InboxRoundTest, AThousandAreTakenInParts) {
  for (size_t i = 0; i < Inbox::kHeldMax; ++i) EXPECT_TRUE(Report(1));
  EXPECT_TRUE(inbox_.AwaitTurn());
  EXPECT_EQ(TakeNow(inbox_).size(), Inbox::kHeldMax);
}

// On the real clock, since that is where a wake-up that is missing is for ever.
TEST(InboxThreads, AThreadThatSleepsWithoutEndSeesWhatWaits) {
  Inbox inbox(Clock::Real());
  const std::vector<SessionId> members = {SessionId{1}, SessionId{2}};
  const MembersReports reports = {.generation = Generation{1},
                                  .members = &members,
                                  .all_are_asked = true,
                                  .none_is_pending = true};
  inbox.SetTurn([] { FAIL() << "the other one has not reported"; });
  for (absl::Time next : {absl::InfinitePast(), absl::InfiniteFuture()}) {
    ASSERT_TRUE(inbox.AwaitTurn());
    TakeNow(inbox);
    inbox.EndTurn({reports}, next);
  }
  std::thread thread([&] {
    EXPECT_TRUE(inbox.AwaitTurn());
    EXPECT_EQ(TakeNow(inbox).size(), 1u);
  });
  SessionMessage message{.session = SessionId{1}, .message = {}};
  EXPECT_TRUE(inbox.Offer(Inbound(std::move(message)), {}, {SessionId{1}}));
  thread.join();
}

TEST(InboxThreads, AThreadThatSleepsHearsOfADeadlineThatAnothersTurnHasFound) {
  Inbox inbox(Clock::Real());
  const std::vector<SessionId> members = {SessionId{1}};
  const MembersReports reports = {.generation = Generation{1},
                                  .members = &members,
                                  .all_are_asked = true,
                                  .none_is_pending = true};
  inbox.SetTurn([&] {
    EXPECT_EQ(TakeNow(inbox).size(), 1u);
    inbox.EndTurn({reports}, absl::InfinitePast());
  });
  for (absl::Time next : {absl::InfinitePast(), absl::InfiniteFuture()}) {
    ASSERT_TRUE(inbox.AwaitTurn());
    TakeNow(inbox);
    inbox.EndTurn({reports}, next);
  }
  std::thread thread([&] {
    EXPECT_TRUE(inbox.AwaitTurn());
    EXPECT_TRUE(TakeNow(inbox).empty());
  });
  SessionMessage message{.session = SessionId{1}, .message = {}};
  EXPECT_TRUE(inbox.Offer(Inbound(std::move(message)), {}, {SessionId{1}}));
  thread.join();
}

TEST(Inbox, WhoWaitsForItsCallTakesTheTurnUnlessSomebodyHasIt) {
  FakeClock clock;
  Inbox inbox(clock);
  std::vector<size_t> taken;
  inbox.SetTurn([&] {
    // Of another one, meanwhile: whoever has the turn is told of it.
    if (taken.empty()) {
      EXPECT_TRUE(inbox.OfferAndTurn(Ended(2)));
    }
    std::vector<Inbox::Received> items;
    inbox.TakeAll(items);
    taken.push_back(items.size());
    inbox.EndTurn({}, absl::InfiniteFuture());
  });
  EXPECT_TRUE(inbox.OfferAndTurn(Ended(1)));
  EXPECT_EQ(taken, std::vector<size_t>{2});
  EXPECT_TRUE(inbox.OfferAndTurn(Ended(3)));
  EXPECT_EQ(taken, (std::vector<size_t>{2, 1}));
  inbox.Close();
  EXPECT_FALSE(inbox.OfferAndTurn(Ended(4)));
}

// Of a job as large as may be, thousands of members may be lost at once.
TEST(InboxOfLosses, TellsThemInTurnsAndNobodyElseWaits) {
  FakeClock clock;
  Inbox inbox(clock);
  constexpr size_t kMost = Inbox::kLostInTurn;
  const auto lost = [](size_t first, size_t count) {
    StreamsLost streams{.sessions = {}, .detail = "the relay was lost"};
    for (size_t i = 0; i < count; ++i)
      streams.sessions.push_back(SessionId{static_cast<int64_t>(first + i)});
    return Inbox::Item(Inbound(std::move(streams)));
  };
  inbox.Push(lost(0, kMost / 2));
  inbox.Push(Ended(-1));
  inbox.Push(lost(kMost / 2, 2 * kMost));
  inbox.Push(Ended(-2));
  std::vector<size_t> turns;  // how many are lost in each
  size_t next = 0;
  std::vector<int64_t> ended;
  while (inbox.size() > 0) {
    ASSERT_TRUE(inbox.AwaitTurn());
    std::vector<Inbox::Received> taken;
    inbox.TakeAll(taken);
    turns.push_back(0);
    for (const Inbox::Received& one : taken) {
      const auto& told = std::get<Inbound>(one.item);
      if (const auto* end = std::get_if<SessionEnded>(&told)) ended.push_back(ToInt(end->session));
      const auto* streams = std::get_if<StreamsLost>(&told);
      if (streams == nullptr) continue;
      EXPECT_EQ(streams->detail, "the relay was lost");
      for (SessionId session : streams->sessions)
        EXPECT_EQ(ToInt(session), static_cast<int64_t>(next++));
      turns.back() += streams->sessions.size();
    }
    EXPECT_EQ(ended, (std::vector<int64_t>{-1, -2})) << "in the first turn";
    inbox.EndTurn({}, absl::InfiniteFuture());
  }
  EXPECT_EQ(turns, (std::vector<size_t>{kMost, kMost, kMost / 2}));
  EXPECT_EQ(next, 5 * kMost / 2);
}

}  // namespace
}  // namespace coordd
