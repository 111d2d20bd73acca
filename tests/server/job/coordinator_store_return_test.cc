// The store of a job whose coordd was started again: calls wait until the members have brought it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/server/support/durability_fixture.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Code = absl::StatusCode;

class CoordinatorStoreReturnTest : public CoordinatorDurabilityTest {
 protected:
  // Ranks 0 and 1, and another coordd.
  void FormAndRestart() {
    Join(1, 2);
    Store(Join(2, 2));
    ASSERT_EQ(Job().phase(), v1::JOB_PHASE_RUNNING);
    Restart();
  }
  static std::vector<StoreReply> Replies(const Effects& effects) {
    std::vector<StoreReply> replies;
    for (const Outgoing& out : effects.outgoing)
      if (const auto* reply = std::get_if<StoreReply>(&out)) replies.push_back(*reply);
    return replies;
  }
  std::vector<StoreReply> Call(int64_t id, decltype(StoreCall::request) request,
                               const std::string& token = "secret") {
    return Replies(Do(StoreCall{CallId{id}, "train", token, std::move(request)}));
  }
  static v1::ResumeReport Wrote(const std::string& key, const std::string& value, int64_t number) {
    v1::ResumeReport report;
    v1::StoredKey& stored = *report.add_stored();
    stored.set_key(key);
    stored.set_value(value);
    stored.mutable_version()->set_epoch(1);
    stored.mutable_version()->set_number(number);
    return report;
  }
  std::string Value(const std::string& key) {
    const auto replies = Call(++last_look_, StoreLook{{key}, true});
    if (replies.empty()) return "it waits";
    if (!replies[0].status.ok()) return std::string(replies[0].status.message());
    return replies[0].found[0].value_or("none");
  }
  int64_t last_look_ = 1000;
};

TEST_F(CoordinatorStoreReturnTest, CallsWaitUntilAllAreBack) {
  FormAndRestart();
  EXPECT_THAT(Call(1, StoreAdd{"n", 1}), IsEmpty());
  EXPECT_THAT(Call(2, StoreGet{"n"}), IsEmpty());
  EXPECT_THAT(Call(3, StoreDelete{"gone"}), IsEmpty());
  const auto refused = Call(4, StoreGet{"n"}, "another token");
  ASSERT_THAT(refused, SizeIs(1));
  EXPECT_THAT(refused[0].status, StatusIs(Code::kUnauthenticated, HasSubstr("token")));
  EXPECT_THAT(Replies(Resume(11, 0, Wrote("n", "41", 3))), IsEmpty());
  EXPECT_THAT(Call(5, StoreSet{"n", "7"}), IsEmpty());
  const auto replies = Replies(Resume(12, 1, Wrote("n", "40", 2)));
  ASSERT_THAT(replies, SizeIs(4));
  EXPECT_EQ(replies[0].call, CallId{1});
  EXPECT_EQ(replies[0].number, 42);
  EXPECT_EQ(replies[0].version, (StoreVersion{Epoch{2}, 1}));
  EXPECT_EQ(replies[1].value, "42");
  EXPECT_EQ(replies[2].number, 0);
  EXPECT_EQ(replies[3].call, CallId{5});
  EXPECT_EQ(Value("n"), "7");
}

// Nobody else waits until all of a large store is there.
TEST_F(CoordinatorStoreReturnTest, ManyKeysComeBackOverTurns) {
  FormAndRestart();
  constexpr int kKeys = 20000;
  v1::ResumeReport wrote;
  for (int i = 0; i < kKeys; ++i)
    *wrote.add_stored() = Wrote(absl::StrCat("k", i), "x", i).stored(0);
  Resume(11, 0, wrote);
  Resume(12, 1);
  EXPECT_EQ(Value("k19999"), "it waits");
  int turns = 0;
  std::vector<StoreReply> replies;
  for (; replies.empty(); ++turns) {
    EXPECT_EQ(state_->NextDeadline(), absl::InfinitePast());
    Effects effects;
    state_->Tick(now_, effects);
    replies = Replies(effects);
  }
  EXPECT_GE(turns, 2);
  EXPECT_LE(turns, 10);
  EXPECT_EQ(replies[0].found[0], "x");
  EXPECT_GT(state_->NextDeadline(), absl::InfinitePast());
  EXPECT_EQ(Value("k0"), "x");
}

TEST_F(CoordinatorStoreReturnTest, WhoGivesUpIsNotCarriedOut) {
  FormAndRestart();
  EXPECT_THAT(Call(1, StoreAdd{"n", 1}), IsEmpty());
  EXPECT_THAT(Call(2, StoreAdd{"n", 10}), IsEmpty());
  EXPECT_THAT(Replies(Do(CallCancelled{CallId{1}})), IsEmpty());
  Resume(11, 0);
  const auto replies = Replies(Resume(12, 1));
  ASSERT_THAT(replies, SizeIs(1));
  EXPECT_EQ(replies[0].number, 10);
}

TEST_F(CoordinatorStoreReturnTest, TheStoreIsThereAlsoWhereOneIsMissing) {
  on_failure_ = v1::ON_FAILURE_CONTINUE;
  Join(1, 1, "secret", 2);
  Store(Join(2, 1, "secret", 2));
  ASSERT_EQ(Job().phase(), v1::JOB_PHASE_RUNNING);
  Restart();
  Resume(11, 0, Wrote("k", "x", 1));
  EXPECT_EQ(Value("k"), "it waits");
  const auto replies = Replies(PassInTurns(options_.lease + options_.resume_grace));
  ASSERT_THAT(replies, SizeIs(1));
  EXPECT_EQ(replies[0].found[0], "x");
}

TEST_F(CoordinatorStoreReturnTest, WhoHasNotHeardOfTheGenerationBringsWhatItHasAsWell) {
  on_failure_ = v1::ON_FAILURE_CONTINUE;
  FormAndRestart();
  Resume(11, 0, Wrote("k", "old", 1));
  v1::WorkerMessage message;
  *message.mutable_join() = JoinOf("w2");
  message.mutable_join()->set_drains(true);
  v1::Resume& resume = *message.mutable_join()->mutable_resume();
  resume.set_epoch(1);
  resume.set_generation(0);  // the one before
  resume.set_rank(1);
  resume.set_cluster_id("c0ffee");
  EXPECT_THAT(Announced(Do(SessionMessage{SessionId{12}, message})), ElementsAre(1));
  EXPECT_EQ(Value("k"), "it waits");
  v1::WorkerMessage said = MessageOf(Epoch{1}, Generation{0});
  *said.mutable_resume_report() = Wrote("k", "new", 2);
  said.mutable_resume_report()->set_over("generation 0 ended");
  const auto replies = Replies(Do(SessionMessage{SessionId{12}, said}));
  ASSERT_THAT(replies, SizeIs(1));
  EXPECT_EQ(replies[0].found[0], "new");
}

TEST_F(CoordinatorStoreReturnTest, ACallThatWaitsHearsOfTheEndOfTheJob) {
  FormAndRestart();
  EXPECT_EQ(Value("k"), "it waits");
  const auto replies = Replies(PassInTurns(options_.lease + options_.resume_grace));
  ASSERT_THAT(replies, SizeIs(1));
  EXPECT_THAT(replies[0].status, StatusIs(Code::kNotFound, HasSubstr("has ended")));
  EXPECT_EQ(Value("k"), "job train has ended");
}

TEST_F(CoordinatorStoreReturnTest, ACallThatWaitsHearsThatCoorddStops) {
  FormAndRestart();
  EXPECT_EQ(Value("k"), "it waits");
  const auto replies = Replies(Do(StopRequested{"coordd is stopping"}));
  ASSERT_THAT(replies, SizeIs(1));
  EXPECT_THAT(replies[0].status, StatusIs(Code::kUnavailable, HasSubstr("is stopping")));
}

TEST_F(CoordinatorStoreReturnTest, ACoorddThatHasOnlySleptHasItsStore) {
  Join(1, 2);
  Store(Join(2, 2));
  Call(1, StoreSet{"k", "mine"});
  Call(2, StoreSet{"gone", "x"});
  Call(3, StoreDelete{"gone"});
  epochs_since_ = 0;
  Do(StreamsLost{{SessionId{1}, SessionId{2}}, "the relay of node0 was lost"});
  EXPECT_EQ(Value("k"), "mine");
  v1::ResumeReport old = Wrote("k", "of another", 1);
  old.MergeFrom(Wrote("gone", "x", 2));
  Resume(11, 0, old);
  EXPECT_THAT(Resumed(Resume(12, 1)), SizeIs(2));
  EXPECT_EQ(Value("k"), "mine");
  EXPECT_EQ(Value("gone"), "none");
}

}  // namespace
}  // namespace coordd
