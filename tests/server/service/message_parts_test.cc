#include "server/service/message_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "server/members/node_members.h"

namespace coordd {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr SessionId kStream{7};

v1::WorkerMessage Naming(int tensors, size_t name_bytes) {
  v1::WorkerMessage message;
  for (int i = 0; i < tensors; ++i) {
    message.mutable_tensors_ready()->add_tensors()->set_name(std::string(name_bytes, 'n') +
                                                             std::to_string(i));
  }
  return message;
}

v1::WorkerMessage Heartbeat() {
  v1::WorkerMessage message;
  message.mutable_heartbeat();
  return message;
}

Heard HeardOf(Inbound in, const v1::WorkerMessage& message) {
  return {.in = std::move(in), .bytes = message.ByteSizeLong(), .space = message.SpaceUsedLong()};
}

Heard SaidBy(std::vector<SessionRange> from, const v1::WorkerMessage& message) {
  return HeardOf(SharedMessage{std::move(from), std::make_shared<const v1::WorkerMessage>(message)},
                 message);
}

Heard SaidBy(SessionId session, const v1::WorkerMessage& message) {
  return HeardOf(SessionMessage{session, message}, message);
}

// Who says it in all parts, in order.
std::vector<int64_t> Speakers(const std::vector<MessagePart>& parts) {
  std::vector<int64_t> speakers;
  for (const MessagePart& part : parts) {
    for (const Inbound& one : *part.in) {
      if (const auto* said = std::get_if<SessionMessage>(&one))
        speakers.push_back(ToInt(said->session));
      const auto* shared = std::get_if<SharedMessage>(&one);
      if (shared == nullptr) continue;
      for (const SessionRange& range : shared->from)
        for (int32_t i = 0; i < range.count; ++i) speakers.push_back(ToInt(range.first) + i);
    }
  }
  return speakers;
}

TEST(PartsOf, WhatCostsLittleIsOnePart) {
  const auto parts = PartsOf(kStream, {SaidBy({{SessionId{1}, 64}}, Heartbeat())}, 40);
  ASSERT_THAT(parts, SizeIs(1));
  EXPECT_THAT(Speakers(parts), SizeIs(64));
  EXPECT_TRUE(parts[0].size.is_small());
  EXPECT_EQ(parts[0].report.words, 0);
  EXPECT_FALSE(parts[0].report.is_nothing_else);
}

// One message of a relay may say the same of all its members: what it costs is not its own bytes.
TEST(PartsOf, WhatManyMembersSayIsToldInTurns) {
  const std::vector<SessionRange> all{{SessionId{1}, 1000}, {SessionId{2001}, 500}};
  const auto parts = PartsOf(kStream, {SaidBy(all, Naming(5000, 1))}, 100'000);
  std::vector<int64_t> expected(1500);
  std::iota(expected.begin(), expected.begin() + 1000, 1);
  std::iota(expected.begin() + 1000, expected.end(), 2001);
  EXPECT_EQ(Speakers(parts), expected);
  int32_t words = 0;
  for (const MessagePart& part : parts) {
    EXPECT_LE(part.size.cost(), Inbox::kTurnCost);
    EXPECT_GE(part.size.cost(), size_t{5000} * 32);
    EXPECT_FALSE(part.size.is_small());
    EXPECT_EQ(part.report.stream, kStream);
    EXPECT_TRUE(part.report.is_nothing_else);
    words += part.report.words;
  }
  EXPECT_EQ(words, 1500);
  EXPECT_GE(parts.size(), 200u);
}

TEST(PartsOf, AShortMessageOfManyIsNotSmall) {
  const auto parts =
      PartsOf(kStream, {SaidBy({{SessionId{1}, NodeMembers::kMaxOpen / 16}}, Heartbeat())}, 20);
  ASSERT_THAT(parts, SizeIs(1));
  EXPECT_FALSE(parts[0].size.is_small());
}

TEST(PartsOf, WhatOneSaysIsNotTakenApart) {
  std::vector<Heard> in;
  in.push_back(SaidBy(SessionId{3}, Naming(60'000, 1)));
  in.push_back(SaidBy(SessionId{4}, Heartbeat()));
  const auto parts = PartsOf(kStream, std::move(in), 600'000);
  ASSERT_THAT(parts, SizeIs(2));
  EXPECT_GT(parts[0].size.cost(), Inbox::kTurnCost);
  EXPECT_THAT(Speakers(parts), ::testing::ElementsAre(3, 4));
}

TEST(PartsOf, KeepsTheOrderOfWhatIsSaid) {
  std::vector<Heard> in;
  for (int i = 0; i < 100; ++i) {
    in.push_back(SaidBy({{SessionId{1}, 100}}, Naming(100, 10)));
    in.push_back({.in = SessionEnded{SessionId{i + 1000}, "gone"}});
  }
  const auto parts = PartsOf(kStream, std::move(in), 200'000);
  EXPECT_GT(parts.size(), 20u);
  int64_t ended = 1000;
  size_t words = 0;
  for (const MessagePart& part : parts) {
    for (const Inbound& one : *part.in) {
      if (const auto* end = std::get_if<SessionEnded>(&one)) {
        EXPECT_EQ(ToInt(end->session), ended++);
        EXPECT_EQ(words, static_cast<size_t>(ended - 1000) * 100);
      } else {
        for (const SessionRange& range : std::get<SharedMessage>(one).from)
          words += static_cast<size_t>(range.count);
      }
    }
  }
  EXPECT_EQ(ended, 1100);
}

TEST(PartsOf, NothingIsAPartOfItsOwn) {
  const auto parts = PartsOf(kStream, {}, 10);  // a hello of a relay
  ASSERT_THAT(parts, SizeIs(1));
  EXPECT_THAT(*parts[0].in, IsEmpty());
}

}  // namespace
}  // namespace coordd
