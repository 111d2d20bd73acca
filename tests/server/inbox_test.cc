#include "server/inbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace coordd {
namespace {

Inbox::Item Ended(int64_t session) { return Inbound(SessionEnded{SessionId(session), "gone"}); }

std::vector<Inbox::Item> TakeNow(Inbox& inbox) { return inbox.TakeAll(absl::InfinitePast()); }

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
  EXPECT_TRUE(inbox.WaitForRoom([&] { ++resumed; }));
  TakeNow(inbox);
  for (const auto& resume : inbox.TakeWaiting()) resume();
  EXPECT_EQ(resumed, 1);
  EXPECT_TRUE(inbox.TakeWaiting().empty());
}

TEST(Inbox, WakesTheCoordinatorForWhoWaitsAlsoWhenItHasJustTakenAll) {
  Inbox inbox(Clock::Real(), /*capacity=*/1);
  inbox.WaitForRoom([] {});
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
  EXPECT_FALSE(inbox.WaitForRoom([] {}));
  EXPECT_FALSE(inbox.Finished());
  EXPECT_EQ(TakeNow(inbox).size(), 1u);
  EXPECT_TRUE(inbox.Finished());
}

}  // namespace
}  // namespace coordd
