// What jobs leave is freed in parts, over turns, and counts for its owner until then.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "server/job/coordinator_state.h"
#include "server/model/graveyard.h"
#include "tests/server/support/builders.h"
#include "tests/support/start_time.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

constexpr Epoch kEpoch{5};
constexpr int kSets = 3000;

// Jobs of alice, of one rank each.
class EndedJobsTest : public ::testing::Test {
 protected:
  EndedJobsTest() {
    // As many sets as two jobs of them together have not.
    options_.max_bytes_per_owner = 3 * kSets * 2300 / 2;
    state_ = std::make_unique<CoordinatorState>(options_, kEpoch);
  }
  void TearDown() override { EXPECT_THAT(state_->CheckConsistency(), IsOk()); }

  Effects Do(const Inbound& in) {
    Effects effects;
    state_->Step(in, kStart, effects);
    state_->Tick(kStart, effects);
    return effects;
  }
  void Join(int64_t session, const std::string& job) {
    v1::WorkerMessage message;
    *message.mutable_join() = JoinOf(absl::StrCat("w", session));
    message.mutable_join()->set_job(job);
    message.mutable_join()->mutable_limits()->set_min_workers(1);
    message.mutable_join()->mutable_limits()->set_max_workers(1);
    const Caller alice{.identity = {.role = Role::kLauncher, .name = "alice"}, .peer = "ipv4:1:1"};
    const Effects effects =
        Do(SessionMessage{SessionId{session}, message, std::make_shared<const Caller>(alice)});
    ASSERT_EQ(effects.outgoing.size(), 1u) << "its membership";
  }
  void Leave(int64_t session) {
    v1::WorkerMessage message = MessageOf(kEpoch, Generation{1});
    message.mutable_leave();
    Do(SessionMessage{SessionId{session}, message});
  }
  // How many of so many named process sets it is refused.
  int AskForSets(int64_t session, int count) {
    int refused = 0;
    for (int i = 0; i < count; ++i) {
      v1::WorkerMessage message = MessageOf(kEpoch, Generation{1});
      message.mutable_process_set_request()->set_name(absl::StrCat("set", i));
      message.mutable_process_set_request()->add_ranks(0);
      Effects effects;
      state_->Step(SessionMessage{SessionId{session}, message}, kStart, effects);
      for (const Event& event : effects.events)
        refused += event.kind == Event::Kind::kProcessSetRefused ? 1 : 0;
    }
    return refused;
  }
  bool HasMoreToDo() const { return state_->NextDeadline() == absl::InfinitePast(); }

  ServerOptions options_;
  std::unique_ptr<CoordinatorState> state_;
};

TEST_F(EndedJobsTest, AreFreedInParts) {
  Join(1, "large");
  Join(2, "another");
  Join(3, "later");
  ASSERT_EQ(AskForSets(1, kSets), 0);
  Leave(1);
  ASSERT_TRUE(HasMoreToDo()) << "one turn has freed " << kSets << " sets";
  EXPECT_GT(AskForSets(3, kSets), 0) << "what is not freed yet counts";
  // What others say meanwhile is answered between two parts.
  v1::WorkerMessage beat = MessageOf(kEpoch, Generation{1});
  beat.mutable_heartbeat();
  EXPECT_EQ(Do(SessionMessage{SessionId{2}, beat}).outgoing.size(), 1u);
  int64_t turns = 2;
  for (; HasMoreToDo(); ++turns) {
    Effects effects;
    state_->Tick(kStart, effects);
  }
  EXPECT_GE(turns, kSets / Graveyard::kPiecesATurn);
  EXPECT_LE(turns, 4 * kSets / Graveyard::kPiecesATurn) << "a set is a few pieces";
  Leave(3);
  while (HasMoreToDo()) {
    Effects effects;
    state_->Tick(kStart, effects);
  }
  Join(4, "large");
  EXPECT_EQ(AskForSets(4, kSets), 0) << "all is free again";
}

TEST_F(EndedJobsTest, LeaveTheirKeysToLaterTurns) {
  Join(1, "large");
  for (int i = 0; i < kSets; ++i) {
    Do(StoreCall{.call = CallId{i + 1},
                 .job = "large",
                 .token = "secret",
                 .request = StoreSet{absl::StrCat(i % 3 == 0 ? "gen/1/" : "", i), "v"}});
  }
  ASSERT_FALSE(HasMoreToDo());
  Leave(1);
  int64_t turns = 1;
  for (; HasMoreToDo(); ++turns) {
    Effects effects;
    state_->Tick(kStart, effects);
  }
  EXPECT_GE(turns, kSets / Graveyard::kPiecesATurn);
}

TEST_F(EndedJobsTest, DeleteManyKeysOverTurnsToo) {
  Join(1, "large");
  int64_t call = 0;
  const auto ask = [&](decltype(StoreCall::request) request) {
    return Do(StoreCall{CallId{++call}, "large", "secret", std::move(request)});
  };
  for (int i = 0; i < kSets; ++i) ask(StoreSet{absl::StrCat("a/", i), "v"});
  const Effects deleted = ask(StoreDeletePrefix{"a/"});
  ASSERT_EQ(deleted.outgoing.size(), 1u);
  EXPECT_EQ(std::get<StoreReply>(deleted.outgoing[0]).number, kSets);
  int64_t turns = 1;
  for (; HasMoreToDo(); ++turns) {
    Effects effects;
    state_->Tick(kStart, effects);
  }
  EXPECT_GE(turns, kSets / Graveyard::kPiecesATurn);
}

TEST_F(EndedJobsTest, ThatHaveLittleAreFreedAtOnce) {
  Join(1, "small");
  ASSERT_EQ(AskForSets(1, 10), 0);
  Leave(1);
  EXPECT_FALSE(HasMoreToDo());
}

// Says how much of it each turn frees.
class Heap final : public Remains {
 public:
  Heap(int64_t pieces, int64_t& left) : left_(left) { left_ += pieces_ = pieces; }
  ~Heap() override { left_ -= pieces_; }
  int64_t Free(int64_t most) override {
    const int64_t freed = std::min(most, pieces_);
    pieces_ -= freed;
    left_ -= freed;
    return freed;
  }

 private:
  int64_t pieces_ = 0;
  int64_t& left_;
};

TEST(GraveyardTest, FreesAboutSoManyPiecesATurnInTheirOrder) {
  int64_t first = 0, second = 0;
  Graveyard graveyard;
  graveyard.Bury(nullptr);
  EXPECT_TRUE(graveyard.empty());
  graveyard.Bury(std::make_unique<Heap>(25, first));
  graveyard.Bury(std::make_unique<Heap>(10, second));
  EXPECT_EQ(graveyard.Free(20), 20);
  EXPECT_EQ(std::pair(first, second), std::pair(int64_t{5}, int64_t{10}));
  EXPECT_EQ(graveyard.Free(10), 10);
  EXPECT_EQ(std::pair(first, second), std::pair(int64_t{0}, int64_t{5}));
  EXPECT_EQ(graveyard.Free(10), 5);
  EXPECT_TRUE(graveyard.empty());
}

TEST(GraveyardTest, TakesWhatIsLeftWithIt) {
  int64_t left = 0;
  {
    Graveyard graveyard;
    graveyard.Bury(std::make_unique<Heap>(25, left));
    graveyard.Free(20);
    EXPECT_EQ(left, 5);
  }
  EXPECT_EQ(left, 0);
}

// Of two jobs at once: a turn gives up as many as it may, and the next one is due until all are.
TEST_F(EndedJobsTest, WhoseMembersAreAllSilentEndOverTurns) {
  constexpr int kMembers = CoordinatorState::kSilentInTurn + 10;
  for (int i = 0; i < 2 * kMembers; ++i) {
    v1::WorkerMessage message;
    *message.mutable_join() = JoinOf(absl::StrCat("w", i));
    message.mutable_join()->set_job(i < kMembers ? "one" : "two");
    message.mutable_join()->mutable_limits()->set_min_workers(kMembers);
    message.mutable_join()->mutable_limits()->set_max_workers(kMembers);
    Do(SessionMessage{SessionId{1 + i}, message});
  }
  absl::Time now = kStart;
  const auto closed = [&] {
    Effects effects;
    state_->Tick(now, effects);
    return std::count_if(effects.outgoing.begin(), effects.outgoing.end(), [](const Outgoing& out) {
      return std::holds_alternative<CloseSession>(out);
    });
  };
  for (; now < kStart + options_.lease; now += absl::Seconds(1)) ASSERT_EQ(closed(), 0);
  for (const int64_t count :
       {CoordinatorState::kSilentInTurn, CoordinatorState::kSilentInTurn, int64_t{20}}) {
    EXPECT_LE(state_->NextDeadline(), now);
    EXPECT_EQ(closed(), count);
    EXPECT_THAT(state_->CheckConsistency(), IsOk());
  }
  while (HasMoreToDo()) closed();
  EXPECT_EQ(closed(), 0);
  EXPECT_GT(state_->NextDeadline(), now);
}

}  // namespace
}  // namespace coordd
