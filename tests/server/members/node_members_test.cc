#include "server/members/node_members.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>

#include "common/base/random.h"
#include "common/protocol/member_runs.h"
#include "tests/server/support/builders.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Code = absl::StatusCode;

class NodeMembersTest : public ::testing::Test {
 protected:
  // What it says next, of `members`: a Join, a heartbeat, or the end.
  void Join(int32_t member, const std::string& job = "train") {
    v1::WorkerMessage message;
    *message.mutable_join() = JoinOf("w");
    message.mutable_join()->set_job(job);
    Say({member}, message.SerializeAsString());
  }
  void Say(std::vector<int32_t> members, const std::string& bytes) {
    v1::NodeMessage& said = *batch_.add_messages();
    for (int32_t member : members) AddMember(member, said.mutable_members());
    said.set_message(bytes);
  }
  void Beat(std::vector<int32_t> members) {
    v1::WorkerMessage message;
    message.mutable_heartbeat();
    Say(std::move(members), message.SerializeAsString());
  }
  void End(std::vector<int32_t> members) {
    v1::NodeMessage& said = *batch_.add_messages();
    for (int32_t member : members) AddMember(member, said.mutable_members());
    said.mutable_end()->set_detail("it\nwent");
  }
  absl::Status Take() {
    in_.clear();
    refused_.clear();
    if (!members_.said_hello()) {
      batch_.mutable_hello()->set_job("train");
      batch_.mutable_hello()->set_protocol(kProtocolVersion);
    }
    const absl::Status status = members_.Take(batch_, in_, refused_);
    batch_.Clear();
    return status;
  }
  void OpenThree() {
    for (int32_t member : {1, 2, 3}) Join(member);
    ASSERT_THAT(Take(), IsOk());
  }

  NodeMembers members_{7};
  v1::NodeMessages batch_;
  std::vector<Heard> in_;
  std::vector<std::pair<int32_t, absl::Status>> refused_;
};

TEST_F(NodeMembersTest, EachMemberIsASessionOfItsOwn) {
  OpenThree();
  ASSERT_THAT(in_, SizeIs(3));
  std::set<SessionId> sessions;
  for (const Heard& heard : in_) sessions.insert(std::get<SessionMessage>(heard.in).session);
  EXPECT_THAT(sessions, ElementsAre(members_.IdOf(1), members_.IdOf(2), members_.IdOf(3)));
  for (SessionId session : sessions) {
    EXPECT_TRUE(NodeMembers::IsMember(session));
    EXPECT_EQ(NodeMembers::NodeOf(session), 7);
  }
  EXPECT_FALSE(NodeMembers::IsMember(SessionId{1}));
  EXPECT_EQ(NodeMembers::MemberOf(members_.IdOf(3)), 3);
}

TEST_F(NodeMembersTest, WhatSeveralSayIsReadOnce) {
  OpenThree();
  Beat({1, 3});
  ASSERT_THAT(Take(), IsOk());
  ASSERT_THAT(in_, SizeIs(1));
  const auto& shared = std::get<SharedMessage>(in_[0].in);
  EXPECT_TRUE(shared.message->has_heartbeat());
  ASSERT_THAT(shared.from, SizeIs(2));
  EXPECT_EQ(shared.from[1].first, members_.IdOf(3));
  EXPECT_EQ(shared.from[1].count, 1);
}

TEST_F(NodeMembersTest, AnEndIsThatMembersAlone) {
  OpenThree();
  End({2});
  ASSERT_THAT(Take(), IsOk());
  ASSERT_THAT(in_, SizeIs(1));
  EXPECT_EQ(std::get<SessionEnded>(in_[0].in).session, members_.IdOf(2));
  EXPECT_EQ(std::get<SessionEnded>(in_[0].in).detail, "it went");
  EXPECT_THAT(members_.MayBeOpen(), SizeIs(3));  // the state may not have heard it yet
  Beat({1, 3});
  ASSERT_THAT(Take(), IsOk());
  EXPECT_THAT(members_.MayBeOpen(), ElementsAre(members_.IdOf(1), members_.IdOf(3)));
  Beat({2});
  EXPECT_THAT(Take(), StatusIs(Code::kInvalidArgument, HasSubstr("member 2 is not open")));
}

TEST_F(NodeMembersTest, WhatARelayMayNotSayEndsItBehindWhatWasRight) {
  const auto refused = [this](auto say) {
    members_ = NodeMembers(7);
    OpenThree();
    Beat({1});
    say();
    const absl::Status status = Take();
    EXPECT_THAT(in_, SizeIs(1));
    return status;
  };
  const auto wrong = [](const std::string& what) {
    return StatusIs(Code::kInvalidArgument, HasSubstr(what));
  };
  EXPECT_THAT(refused([&] { Beat({}); }), wrong("no member"));
  EXPECT_THAT(refused([&] { Beat({5}); }), wrong("member 5 is not open; the next one"));
  EXPECT_THAT(refused([&] { Beat({3, 4}); }), wrong("member 4 is not open"));
  EXPECT_THAT(refused([&] { End({4}); }), wrong("member 4 is not open"));
  EXPECT_THAT(refused([&] { batch_.add_messages()->add_members()->set_first(1); }),
              wrong("expected at least one"));
  EXPECT_THAT(refused([&] {
                v1::NodeMessage& said = *batch_.add_messages();
                for (int i = 0; i < 2; ++i) {
                  said.add_members()->set_first(2);
                  said.mutable_members(i)->set_count(1);
                }
              }),
              wrong("none twice"));
  EXPECT_THAT(refused([&] {
                v1::MemberRun& run = *batch_.add_messages()->add_members();
                run.set_first(1);
                run.set_count(std::numeric_limits<int32_t>::max());
              }),
              wrong("expected at least one"));
  members_ = NodeMembers(7);
  OpenThree();
  batch_.mutable_hello()->set_job("train");
  EXPECT_THAT(Take(), wrong("hello again"));
}

TEST_F(NodeMembersTest, NothingComesBeforeItsHello) {
  Join(1);
  EXPECT_THAT(members_.Take(batch_, in_, refused_),
              StatusIs(Code::kInvalidArgument, HasSubstr("no hello")));
  EXPECT_FALSE(members_.said_hello());
}

TEST_F(NodeMembersTest, AnotherProtocolIsRefusedByName) {
  batch_.mutable_hello()->set_job("train");
  batch_.mutable_hello()->set_protocol(99);
  EXPECT_THAT(members_.Take(batch_, in_, refused_),
              StatusIs(Code::kFailedPrecondition, HasSubstr("99")));
}

TEST_F(NodeMembersTest, AWorkerOfAnotherJobIsRefusedAlone) {
  Join(1);
  Join(2, "another");
  ASSERT_THAT(Take(), IsOk());
  EXPECT_THAT(in_, SizeIs(1));
  ASSERT_THAT(refused_, SizeIs(1));
  EXPECT_EQ(refused_[0].first, 2);
  EXPECT_THAT(refused_[0].second, StatusIs(Code::kInvalidArgument, HasSubstr("job another")));
  Beat({1, 2});
  ASSERT_THAT(Take(), IsOk());
  ASSERT_THAT(in_, SizeIs(1));
  EXPECT_EQ(std::get<SessionMessage>(in_[0].in).session, members_.IdOf(1));
  End({2});
  ASSERT_THAT(Take(), IsOk());
  EXPECT_THAT(in_, IsEmpty());
}

TEST_F(NodeMembersTest, WhatNobodyCanReadIsThatMembersFault) {
  OpenThree();
  Say({2}, "\xff\xff\xff");
  ASSERT_THAT(Take(), IsOk());
  ASSERT_THAT(in_, SizeIs(1));
  const SessionEnded& ended = std::get<SessionEnded>(in_[0].in);
  EXPECT_EQ(ended.session, members_.IdOf(2));
  EXPECT_EQ(ended.detail, "a message of 3 bytes that is no WorkerMessage");
  ASSERT_THAT(refused_, SizeIs(1));
  EXPECT_EQ(refused_[0].first, 2);
  EXPECT_THAT(refused_[0].second, StatusIs(Code::kInvalidArgument, ended.detail));
}

TEST_F(NodeMembersTest, WhatTakesTooMuchMemoryEndsAllWhoSayIt) {
  OpenThree();
  v1::WorkerMessage word;
  for (int i = 0; i < 4096; ++i) word.mutable_tensors_ready()->add_tensors();
  Say({2, 3}, word.SerializeAsString());
  Beat({1, 2, 3});
  ASSERT_THAT(Take(), IsOk());
  ASSERT_THAT(in_, SizeIs(3));
  EXPECT_THAT(std::get<SessionEnded>(in_[0].in).detail, HasSubstr("have nothing in them"));
  EXPECT_EQ(std::get<SessionEnded>(in_[1].in).session, members_.IdOf(3));
  EXPECT_EQ(std::get<SessionMessage>(in_[2].in).session, members_.IdOf(1));
  EXPECT_THAT(refused_, SizeIs(2));
  EXPECT_THAT(members_.MayBeOpen(), SizeIs(3));
  End({2, 3});
  ASSERT_THAT(Take(), IsOk());
  EXPECT_THAT(in_, IsEmpty());
  EXPECT_THAT(members_.MayBeOpen(), SizeIs(1));
}

TEST_F(NodeMembersTest, WhoOpensWithWhatNobodyCanReadIsRefused) {
  Say({1}, "\xff");
  Join(2);
  ASSERT_THAT(Take(), IsOk());
  EXPECT_THAT(refused_, SizeIs(1));
  EXPECT_EQ(std::get<SessionMessage>(in_.back().in).session, members_.IdOf(2));
}

TEST_F(NodeMembersTest, ABatchCostsABoundedTurn) {
  for (int32_t member = 1; member <= 1024; ++member) Join(member);
  ASSERT_THAT(Take(), IsOk());
  for (int i = 0; i < 65; ++i) {
    v1::MemberRun& run = *batch_.add_messages()->add_members();
    run.set_first(1);
    run.set_count(1024);
  }
  EXPECT_THAT(Take(), StatusIs(Code::kInvalidArgument, HasSubstr("65536 words")));
}

// Whatever bytes come: nothing reaches the state but words and ends of members that have begun with
// one message alone and have not ended.
TEST_F(NodeMembersTest, LetsOnlyOpenMembersSpeakWhateverComes) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Random random(seed);
    NodeMembers members(static_cast<int64_t>(seed));
    std::set<SessionId> open;
    int32_t last = 0;
    for (int step = 0; step < 60; ++step) {
      v1::NodeMessages batch;
      if (step == 0 || random.Below(50) == 0) {
        batch.mutable_hello()->set_job("train");
        batch.mutable_hello()->set_protocol(kProtocolVersion);
      }
      for (uint64_t i = random.Below(4); i > 0; --i) {
        v1::NodeMessage& said = *batch.add_messages();
        for (uint64_t runs = random.Below(3); runs > 0 || said.members().empty(); --runs) {
          v1::MemberRun& run = *said.add_members();
          run.set_first(static_cast<int32_t>(1 + random.Below(static_cast<uint64_t>(last) + 2)));
          run.set_count(random.Below(20) == 0 ? -1 : static_cast<int32_t>(1 + random.Below(2)));
          if (runs == 0) break;
        }
        if (random.Below(4) == 0) said.mutable_end();
        const auto length = static_cast<size_t>(random.Below(5));
        said.set_message(std::string(length, static_cast<char>(random.Below(256))));
      }
      std::vector<Heard> in;
      std::vector<std::pair<int32_t, absl::Status>> refused;
      const absl::Status status = members.Take(batch, in, refused);
      const auto speaks = [&](SessionId session) {
        const int32_t member = NodeMembers::MemberOf(session);
        if (member == last + 1 && open.insert(session).second) ++last;
        ASSERT_TRUE(open.contains(session)) << "member " << member;
      };
      for (const Heard& heard : in) {
        const Inbound& one = heard.in;
        if (const auto* said = std::get_if<SessionMessage>(&one)) speaks(said->session);
        if (const auto* end = std::get_if<SessionEnded>(&one)) {
          ASSERT_EQ(open.erase(end->session), 1u);
        }
        const auto* shared = std::get_if<SharedMessage>(&one);
        if (shared == nullptr) continue;
        for (const SessionRange& range : shared->from)
          for (int32_t i = 0; i < range.count; ++i) speaks(SessionId{ToInt(range.first) + i});
      }
      if (!status.ok()) break;
      const std::vector<SessionId> left = members.MayBeOpen();
      for (SessionId session : open)
        ASSERT_TRUE(std::find(left.begin(), left.end(), session) != left.end());
    }
  }
}

}  // namespace
}  // namespace coordd
