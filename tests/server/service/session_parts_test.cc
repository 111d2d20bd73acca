// What a session keeps: what is to be written, and what was read before.
#include <gmock/gmock.h>
#include <grpcpp/support/slice.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "server/service/repeated_messages.h"
#include "server/service/session_outbox.h"
#include "server/service/unread_answers.h"

namespace coordd {
namespace {

grpc::ByteBuffer BytesOf(const std::string& text) {
  const grpc::Slice slice(text);
  return grpc::ByteBuffer(&slice, 1);
}

std::string TextOf(const grpc::ByteBuffer& bytes) {
  std::vector<grpc::Slice> slices;
  bytes.Dump(&slices).ok();
  std::string text;
  for (const grpc::Slice& slice : slices)
    text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return text;
}

TEST(SessionOutbox, HandsOutInTheOrderInWhichItWasGiven) {
  SessionOutbox outbox({.messages = 2, .bytes = 100}, nullptr);
  EXPECT_TRUE(outbox.Add(BytesOf("one"), 0));
  EXPECT_TRUE(outbox.Add(BytesOf("two"), 0));
  EXPECT_FALSE(outbox.Add(BytesOf("three"), 0)) << "there is room for two";
  EXPECT_EQ(TextOf(outbox.Take()), "one");
  EXPECT_TRUE(outbox.Add(BytesOf("three"), 0));
  EXPECT_EQ(TextOf(outbox.Take()), "two");
  EXPECT_EQ(TextOf(outbox.Take()), "three");
  EXPECT_TRUE(outbox.empty());
}

TEST(SessionOutbox, CountsBytesToo) {
  SessionOutbox outbox({.messages = 10, .bytes = 5}, nullptr);
  EXPECT_TRUE(outbox.Add(BytesOf("four"), 0));
  EXPECT_FALSE(outbox.Add(BytesOf("45"), 0));
  outbox.Discard();
  EXPECT_TRUE(outbox.empty());
  EXPECT_TRUE(outbox.Add(BytesOf("fiver"), 0));
}

TEST(SessionOutbox, JoinsWhatGoesTogetherAndNeverCutsOne) {
  SessionOutbox outbox({.messages = 10, .bytes = 100, .together_bytes = 5}, nullptr);
  for (const char* text : {"ab", "cd", "ef", "long message", "gh"})
    ASSERT_TRUE(outbox.Add(BytesOf(text), 0));
  EXPECT_EQ(TextOf(outbox.Take()), "abcd");
  EXPECT_EQ(TextOf(outbox.Take()), "ef");
  EXPECT_EQ(TextOf(outbox.Take()), "long message");
  EXPECT_EQ(TextOf(outbox.Take()), "gh");
}

TEST(SessionOutbox, TellsHowItHasGrownSinceItWasAsked) {
  SessionOutbox outbox({}, nullptr);
  outbox.Add(BytesOf("one"), 0);
  outbox.Take();
  EXPECT_EQ(outbox.TakeGrowth(), 0);
  outbox.Add(BytesOf("one"), 0);
  outbox.Add(BytesOf("two"), 0);
  EXPECT_EQ(outbox.TakeGrowth(), 2);
  outbox.Discard();
  EXPECT_EQ(outbox.TakeGrowth(), -2);
}

class UnreadTest : public testing::Test {
 protected:
  static constexpr int64_t kOfSession = 4096;

  static std::shared_ptr<UnreadAnswers::OfOne> Of(UnreadAnswers& all, const std::string& peer) {
    return all.Of({.identity = WithoutTls(), .peer = peer});
  }

  UnreadAnswers all_{{.of_one = 10'000, .of_all = 20'000, .of_session = kOfSession}};
  std::shared_ptr<UnreadAnswers::OfOne> one_ = Of(all_, "ipv4:10.0.0.1:1");
};

TEST_F(UnreadTest, WhatIsSharedIsCountedOnceUntilNobodyHasIt) {
  {
    const grpc::Slice body = one_->NewSlice(1000);
    const grpc::ByteBuffer first(&body, 1), second(&body, 1);
    EXPECT_EQ(all_.bytes(), 1000);
  }
  EXPECT_EQ(all_.bytes(), 0);
}

TEST_F(UnreadTest, TheMoreThereIsTheLessMayASessionHave) {
  one_->Add(9'999);
  EXPECT_FALSE(one_->HoldsUp(1 << 30)) << "there is room";
  one_->Add(1);
  EXPECT_TRUE(one_->HoldsUp(kOfSession + 1));
  EXPECT_FALSE(one_->HoldsUp(kOfSession));
  one_->Add(10'000);
  EXPECT_TRUE(one_->HoldsUp(kOfSession / 2 + 1));
  EXPECT_FALSE(one_->HoldsUp(kOfSession / 2));
  EXPECT_FALSE(one_->Ends(1 << 30));
  one_->Add(10'000);
  EXPECT_TRUE(one_->Ends(kOfSession + 1));
  EXPECT_FALSE(one_->Ends(kOfSession));
  one_->Add(-30'000);
  EXPECT_FALSE(one_->HoldsUp(1 << 30));
}

TEST_F(UnreadTest, IsOfAnAddressWhateverThePortAndOfAll) {
  EXPECT_EQ(Of(all_, "ipv4:10.0.0.1:2"), one_);
  const auto other = Of(all_, "ipv4:10.0.0.2:1");
  ASSERT_NE(other, one_);
  one_->Add(19'000);
  EXPECT_FALSE(other->HoldsUp(1 << 20)) << "one's is not the other's";
  other->Add(1'000);
  EXPECT_TRUE(other->HoldsUp(1 << 20)) << "together they have too much";
}

TEST_F(UnreadTest, AnOutboxCountsWhatIsQueuedTakenAndKept) {
  constexpr int64_t kMessage = SessionOutbox::kMessageCosts + 3;
  {
    SessionOutbox outbox({.together_bytes = 1000}, one_);
    outbox.Add(BytesOf("one"), 0);
    outbox.Add(BytesOf("two"), 0);
    outbox.Add(BytesOf("six"), 3);  // counted elsewhere
    EXPECT_EQ(all_.bytes(), 3 * kMessage - 3);
    outbox.Take();
    EXPECT_EQ(all_.bytes(), 3 * kMessage - 3) << "it is not written";
    outbox.Add(BytesOf("two"), 0);
    outbox.Written();
    EXPECT_EQ(all_.bytes(), kMessage);
    outbox.Discard();
    EXPECT_EQ(all_.bytes(), 0);
    outbox.Add(BytesOf("two"), 0);
    EXPECT_TRUE(outbox.KeepsToo(100));
    EXPECT_EQ(all_.bytes(), kMessage + 100);
  }
  EXPECT_EQ(all_.bytes(), 0);
}

TEST_F(UnreadTest, WhoReadsIsToldHoweverLittleRoomOthersLeave) {
  one_->Add(40'000);
  SessionOutbox outbox({}, one_);
  EXPECT_TRUE(outbox.Add(BytesOf(std::string(50'000, 'x')), 0)) << "nothing is unread before it";
  EXPECT_TRUE(outbox.HoldsReaderUp());
  EXPECT_FALSE(outbox.Add(BytesOf("more"), 0));
  EXPECT_THAT(outbox.WhyFull(), testing::HasSubstr("50000 bytes unread, while 0 MiB of ipv4:10.0"));
  outbox.Take();
  EXPECT_FALSE(outbox.LetsReaderGo()) << "it is not written";
  outbox.Written();
  EXPECT_TRUE(outbox.LetsReaderGo());
  EXPECT_TRUE(outbox.Add(BytesOf("more"), 0));
}

TEST_F(UnreadTest, WhatWaitsForAReaderIsNotKeptWhereThereIsTooMuch) {
  SessionOutbox outbox({}, one_);
  outbox.Add(BytesOf(std::string(10'000, 'x')), 0);
  ASSERT_TRUE(outbox.HoldsReaderUp());
  EXPECT_TRUE(outbox.KeepsToo(10'000));
  EXPECT_FALSE(outbox.KeepsToo(30'000));
  outbox.Take();
  outbox.Written();
  ASSERT_FALSE(one_->HoldsUp(1)) << "what is kept is no reason to be held up for ever";
  EXPECT_TRUE(outbox.LetsReaderGo());
  EXPECT_EQ(all_.bytes(), 0);
}

ParsedMessage Says(int64_t words) {
  return {.parts = {{.in = std::make_shared<std::vector<Inbound>>(),
                     .report = {.stream = SessionId{1}, .words = static_cast<int32_t>(words)}}}};
}

TEST(RepeatedMessages, OfAnotherSetOfMembersIsNotTheSame) {
  RepeatedMessages repeated;
  EXPECT_FALSE(repeated.MembersAre(1));
  EXPECT_TRUE(repeated.MembersAre(1));
  repeated.Remember("ready", Says(1));
  EXPECT_NE(repeated.Find("ready"), nullptr);
  EXPECT_EQ(repeated.Find("read"), nullptr);
  EXPECT_FALSE(repeated.MembersAre(2));
  EXPECT_EQ(repeated.Find("ready"), nullptr);
}

TEST(RepeatedMessages, OnlyReportsRepeat) {
  RepeatedMessages repeated;
  repeated.Remember("nothing", Says(0));
  EXPECT_EQ(repeated.Find("nothing"), nullptr);
  ParsedMessage once = Says(1);
  once.may_repeat = false;
  repeated.Remember("once", once);
  EXPECT_EQ(repeated.Find("once"), nullptr);
  ParsedMessage more = Says(1);
  more.parts[0].report.is_nothing_else = false;
  repeated.Remember("more", more);
  EXPECT_EQ(repeated.Find("more"), nullptr);
}

TEST(RepeatedMessages, TheOldestMakesRoom) {
  RepeatedMessages repeated;
  for (size_t i = 0; i <= RepeatedMessages::kMost; ++i)
    repeated.Remember(std::string(i + 1, 'x'), Says(1));
  EXPECT_EQ(repeated.Find("x"), nullptr);
  for (size_t i = 1; i <= RepeatedMessages::kMost; ++i)
    EXPECT_NE(repeated.Find(std::string(i + 1, 'x')), nullptr) << i;
}

}  // namespace
}  // namespace coordd
