// What a session keeps: what is to be written, and what was read before.
#include <gmock/gmock.h>
#include <grpcpp/support/slice.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "server/service/repeated_messages.h"
#include "server/service/session_outbox.h"

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
  SessionOutbox outbox({.messages = 2, .bytes = 100});
  EXPECT_TRUE(outbox.Add(BytesOf("one")));
  EXPECT_TRUE(outbox.Add(BytesOf("two")));
  EXPECT_FALSE(outbox.Add(BytesOf("three"))) << "there is room for two";
  EXPECT_EQ(TextOf(outbox.Take()), "one");
  EXPECT_TRUE(outbox.Add(BytesOf("three")));
  EXPECT_EQ(TextOf(outbox.Take()), "two");
  EXPECT_EQ(TextOf(outbox.Take()), "three");
  EXPECT_TRUE(outbox.empty());
}

TEST(SessionOutbox, CountsBytesToo) {
  SessionOutbox outbox({.messages = 10, .bytes = 5});
  EXPECT_TRUE(outbox.Add(BytesOf("four")));
  EXPECT_FALSE(outbox.Add(BytesOf("45")));
  outbox.Discard();
  EXPECT_TRUE(outbox.empty());
  EXPECT_TRUE(outbox.Add(BytesOf("fiver")));
}

TEST(SessionOutbox, JoinsWhatGoesTogetherAndNeverCutsOne) {
  SessionOutbox outbox({.messages = 10, .bytes = 100, .together_bytes = 5});
  for (const char* text : {"ab", "cd", "ef", "long message", "gh"})
    ASSERT_TRUE(outbox.Add(BytesOf(text)));
  EXPECT_EQ(TextOf(outbox.Take()), "abcd");
  EXPECT_EQ(TextOf(outbox.Take()), "ef");
  EXPECT_EQ(TextOf(outbox.Take()), "long message");
  EXPECT_EQ(TextOf(outbox.Take()), "gh");
}

TEST(SessionOutbox, TellsHowItHasGrownSinceItWasAsked) {
  SessionOutbox outbox({});
  outbox.Add(BytesOf("one"));
  outbox.Take();
  EXPECT_EQ(outbox.TakeGrowth(), 0);
  outbox.Add(BytesOf("one"));
  outbox.Add(BytesOf("two"));
  EXPECT_EQ(outbox.TakeGrowth(), 2);
  outbox.Discard();
  EXPECT_EQ(outbox.TakeGrowth(), -2);
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
