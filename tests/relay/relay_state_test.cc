#include "relay/relay_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/base/version.h"
#include "common/protocol/member_runs.h"
#include "server/members/node_members.h"
#include "tests/server/support/builders.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Code = absl::StatusCode;

const absl::Time kStart = absl::FromUnixSeconds(1000);

std::string JoinBytes() {
  v1::WorkerMessage message;
  *message.mutable_join() = JoinOf("w");
  return message.SerializeAsString();
}
// What a worker sends, such that coordd can tell which one it was.
std::string Word(int64_t number) {
  v1::WorkerMessage message;
  message.mutable_heartbeat()->set_sent_ns(number);
  return message.SerializeAsString();
}

v1::NodeHello Hello() {
  v1::NodeHello hello;
  hello.set_protocol(kProtocolVersion);
  return hello;
}

std::vector<int32_t> MembersOf(const v1::NodeMessage& message) {
  std::vector<int32_t> members;
  ForEachMember(message.members(), [&](int32_t member) { members.push_back(member); });
  return members;
}

class RelayStateTest : public ::testing::Test {
 protected:
  void Open(int workers) {
    for (int i = 1; i <= workers; ++i) state_.Said(StreamId{i}, JoinBytes(), kStart);
    state_.TakeBatch();
  }
  void Say(int64_t stream, int64_t word, absl::Time now = kStart) {
    state_.Said(StreamId{stream}, Word(word), now);
  }

  RelayState state_{RelayOptions(), Hello()};
};

TEST_F(RelayStateTest, TheFirstBatchSaysHelloForTheJobOfTheFirstJoin) {
  state_.Said(StreamId{10}, JoinBytes(), kStart);
  state_.Said(StreamId{20}, JoinBytes(), kStart);
  const v1::NodeMessages batch = state_.TakeBatch();
  EXPECT_EQ(batch.hello().job(), "train");
  ASSERT_EQ(batch.messages_size(), 2);  // Joins go alone, also when they are equal
  EXPECT_THAT(MembersOf(batch.messages(0)), ElementsAre(1));
  EXPECT_THAT(MembersOf(batch.messages(1)), ElementsAre(2));
  Say(10, 1);
  EXPECT_FALSE(state_.TakeBatch().has_hello());
}

TEST_F(RelayStateTest, TheMetricsOfItsMembersAreWhereItServesThem) {
  RelayState state({.metrics_address = "10.0.0.7:9401/node"}, Hello());
  for (int i = 1; i <= 3; ++i) {
    v1::WorkerMessage message;
    *message.mutable_join() = JoinOf("w");
    if (i != 2) message.mutable_join()->set_metrics_address(absl::StrCat("127.0.0.1:", 9000 + i));
    state.Said(StreamId{i}, message.SerializeAsString(), kStart);
  }
  const v1::NodeMessages batch = state.TakeBatch();
  ASSERT_EQ(batch.messages_size(), 3);
  std::vector<std::string> told;
  for (const v1::NodeMessage& message : batch.messages()) {
    v1::WorkerMessage join;
    ASSERT_TRUE(join.ParseFromString(message.message()));
    told.push_back(join.join().metrics_address());
  }
  // One has none, and gets none.
  EXPECT_THAT(told, ElementsAre("10.0.0.7:9401/node", "", "10.0.0.7:9401/node"));
  EXPECT_THAT(state.MetricsAddresses(), ElementsAre("127.0.0.1:9001", "127.0.0.1:9003"));
  state.Ended(StreamId{1}, "", kStart);
  EXPECT_THAT(state.MetricsAddresses(), ElementsAre("127.0.0.1:9003"));
}

TEST_F(RelayStateTest, WithoutMetricsOfItsOwnJoinsGoAsTheyCame) {
  v1::WorkerMessage message;
  *message.mutable_join() = JoinOf("w");
  message.mutable_join()->set_metrics_address("127.0.0.1:9001");
  const std::string sent = message.SerializeAsString();
  state_.Said(StreamId{1}, sent, kStart);
  EXPECT_EQ(state_.TakeBatch().messages(0).message(), sent);
  EXPECT_THAT(state_.MetricsAddresses(), IsEmpty());
}

TEST_F(RelayStateTest, WhatAllSayGoesOnceAndAtOnce) {
  Open(3);
  EXPECT_EQ(state_.BatchDue(), absl::InfiniteFuture());
  Say(3, 7);
  Say(1, 7);
  EXPECT_EQ(state_.BatchDue(), kStart + RelayOptions().hold);
  Say(2, 7);
  EXPECT_LE(state_.BatchDue(), kStart);
  const v1::NodeMessages batch = state_.TakeBatch();
  ASSERT_EQ(batch.messages_size(), 1);
  EXPECT_EQ(batch.messages(0).message(), Word(7));
  EXPECT_THAT(MembersOf(batch.messages(0)), ElementsAre(1, 2, 3));
  ASSERT_EQ(batch.messages(0).members_size(), 1);
}

TEST_F(RelayStateTest, WhoIsLateIsNotWaitedForLong) {
  Open(2);
  Say(1, 7);
  EXPECT_EQ(state_.BatchDue(), kStart + RelayOptions().hold);
}

TEST_F(RelayStateTest, NobodysWordsChangeTheirOrder) {
  Open(2);
  Say(1, 1);
  Say(1, 2);
  Say(2, 2);  // joins the word of 1 ...
  Say(2, 1);  // ... so this one may not go before it
  const v1::NodeMessages batch = state_.TakeBatch();
  ASSERT_EQ(batch.messages_size(), 3);
  EXPECT_THAT(MembersOf(batch.messages(0)), ElementsAre(1));
  EXPECT_THAT(MembersOf(batch.messages(1)), ElementsAre(1, 2));
  EXPECT_THAT(MembersOf(batch.messages(2)), ElementsAre(2));
}

TEST_F(RelayStateTest, AnEndIsSaidOnceAndBehindTheLastWord) {
  Open(2);
  Say(1, 1);
  state_.Ended(StreamId{1}, "", kStart);
  state_.Ended(StreamId{1}, "", kStart);
  const v1::NodeMessages batch = state_.TakeBatch();
  ASSERT_EQ(batch.messages_size(), 2);
  EXPECT_TRUE(batch.messages(1).has_end());
  EXPECT_EQ(state_.BatchDue(), absl::InfiniteFuture());
  EXPECT_EQ(state_.members(), 1u);
}

TEST_F(RelayStateTest, WhoHasSaidNothingIsNobody) {
  state_.Ended(StreamId{1}, "", kStart);
  EXPECT_EQ(state_.BatchDue(), absl::InfiniteFuture());
}

TEST_F(RelayStateTest, NumbersWhatGoesToEachWorker) {
  Open(2);
  v1::NodeReplies replies;
  v1::NodeReply& to_all = *replies.add_replies();
  to_all.set_message("all");
  to_all.add_members()->set_first(1);
  to_all.mutable_members(0)->set_count(2);
  v1::NodeReply& to_two = *replies.add_replies();
  to_two.set_message("two");
  AddMember(2, to_two.mutable_members());
  std::vector<RelayState::ToWorker> out;
  ASSERT_THAT(state_.Heard(replies, kStart, out), IsOk());
  ASSERT_THAT(out, SizeIs(3));
  EXPECT_EQ(out[0].stream, StreamId{1});
  EXPECT_EQ(out[1].stream, StreamId{2});
  EXPECT_EQ(out[1].sequence, 1);
  EXPECT_EQ(*out[2].message, "two");
  EXPECT_EQ(out[2].sequence, 2);
}

TEST_F(RelayStateTest, WhomCoorddEndsIsEndedAndSaidToBe) {
  Open(2);
  v1::NodeReplies replies;
  v1::NodeReply& close = *replies.add_replies();
  AddMember(2, close.mutable_members());
  close.mutable_close()->set_code(static_cast<int>(Code::kUnauthenticated));
  close.mutable_close()->set_message("wrong token");
  std::vector<RelayState::ToWorker> out;
  ASSERT_THAT(state_.Heard(replies, kStart, out), IsOk());
  ASSERT_THAT(out, SizeIs(1));
  EXPECT_EQ(out[0].message, nullptr);
  EXPECT_THAT(out[0].status, StatusIs(Code::kUnauthenticated, "wrong token"));
  const v1::NodeMessages batch = state_.TakeBatch();
  ASSERT_EQ(batch.messages_size(), 1);
  EXPECT_TRUE(batch.messages(0).has_end());
  // What had been under way to it.
  ASSERT_THAT(state_.Heard(replies, kStart, out), IsOk());
  EXPECT_THAT(out, SizeIs(1));
  close.mutable_members(0)->set_first(9);
  EXPECT_THAT(state_.Heard(replies, kStart, out), StatusIs(Code::kInternal, testing::_));
}

TEST_F(RelayStateTest, TooMuchIsHeldBackAndSplit) {
  RelayOptions options;
  options.batch_bytes = 100;
  options.pending_bytes = 150;
  state_ = RelayState(options, Hello());
  state_.Said(StreamId{1}, std::string(80, 'a'), kStart);
  state_.Said(StreamId{1}, std::string(80, 'b'), kStart);
  EXPECT_TRUE(state_.full());
  EXPECT_THAT(state_.TakeBatch().messages(), SizeIs(1));
  EXPECT_FALSE(state_.full());
  EXPECT_THAT(state_.TakeBatch().messages(), SizeIs(1));
}

// Workers that open, speak and go by chance, over the relay to coordd's side of it: each is heard
// in its order, word for word, to its end, and nothing else is.
TEST_F(RelayStateTest, CoorddHearsOfEachWorkerWhatItHasSaid) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Random random(seed);
    RelayOptions options;
    options.batch_bytes = 1 + random.Below(300);
    RelayState relay(options, Hello());
    NodeMembers members(1);
    std::map<int32_t, std::vector<int64_t>> said, heard;  // by number; -1: the end
    std::map<StreamId, int32_t> number;
    int64_t streams = 0;
    int32_t opened = 0;
    for (int step = 0; step < 300; ++step) {
      const uint64_t what = random.Below(10);
      if (what == 0 || number.empty()) {
        const StreamId stream{++streams};
        number[stream] = ++opened;
        said[opened].push_back(0);
        relay.Said(stream, JoinBytes(), kStart);
      } else if (what < 8) {
        const auto it =
            std::next(number.begin(), static_cast<int64_t>(random.Below(number.size())));
        const auto word = static_cast<int64_t>(1 + random.Below(3));
        said[it->second].push_back(word);
        relay.Said(it->first, Word(word), kStart);
      } else if (what == 8) {
        const auto it =
            std::next(number.begin(), static_cast<int64_t>(random.Below(number.size())));
        said[it->second].push_back(-1);
        relay.Ended(it->first, "", kStart);
        number.erase(it);
      }
      if (relay.BatchDue() == absl::InfiniteFuture() || (random.Below(5) > 0 && step < 299))
        continue;
      do {
        std::vector<Heard> in;
        std::vector<std::pair<int32_t, absl::Status>> refused;
        ASSERT_THAT(members.Take(relay.TakeBatch(), in, refused), IsOk());
        ASSERT_THAT(refused, IsEmpty());
        const auto hears = [&](SessionId session, const v1::WorkerMessage& message) {
          heard[NodeMembers::MemberOf(session)].push_back(message.heartbeat().sent_ns());
        };
        for (const Heard& one_heard : in) {
          const Inbound& one = one_heard.in;
          if (const auto* alone = std::get_if<SessionMessage>(&one))
            hears(alone->session, alone->message);
          if (const auto* end = std::get_if<SessionEnded>(&one))
            heard[NodeMembers::MemberOf(end->session)].push_back(-1);
          const auto* shared = std::get_if<SharedMessage>(&one);
          if (shared == nullptr) continue;
          for (const SessionRange& range : shared->from)
            for (int32_t i = 0; i < range.count; ++i)
              hears(SessionId{ToInt(range.first) + i}, *shared->message);
        }
      } while (step == 299 && relay.BatchDue() != absl::InfiniteFuture());
    }
    EXPECT_EQ(heard, said) << "seed " << seed;
    EXPECT_EQ(relay.members(), number.size());
  }
}

}  // namespace
}  // namespace coordd
