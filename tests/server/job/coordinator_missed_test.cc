// Members of a generation that goes on are told over turns what others have heard.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "server/job/missed_telling.h"
#include "tests/server/support/durability_fixture.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

TEST(MissedTelling, SaysEachMessageOnceInOrderToAllWhoLackIt) {
  MissedMessages missed(4);
  const auto lack = [&](size_t rank, int64_t position) {
    auto message = std::make_shared<v1::CoordinatorMessage>();
    message->set_position(position);
    missed[rank].push_back(std::move(message));
  };
  for (const int64_t position : {2, 5, 9}) lack(1, position);
  for (const int64_t position : {5, 7, 9}) lack(2, position);
  lack(3, 1);
  v1::CoordinatorMessage head;
  head.set_epoch(4);
  head.set_generation(3);
  MissedTelling telling(missed, {SessionId{10}, SessionId{11}, SessionId{12}, SessionId{0}}, head);
  Effects effects;
  int turns = 1;
  EXPECT_FALSE(telling.has_told());
  for (; !telling.Continue(1, effects); ++turns) EXPECT_TRUE(telling.has_told());
  EXPECT_EQ(turns, 4) << "one is looked at, at least";
  std::vector<std::pair<int64_t, std::vector<SessionId>>> told;
  for (const Outgoing& out : effects.outgoing) {
    const auto& deliver = std::get<Deliver>(out);
    EXPECT_EQ(deliver.message->epoch(), 4);
    EXPECT_EQ(deliver.message->generation(), 3);
    told.emplace_back(deliver.message->position(), deliver.to);
  }
  EXPECT_THAT(told, ElementsAre(Pair(2, ElementsAre(SessionId{11})),
                                Pair(5, ElementsAre(SessionId{11}, SessionId{12})),
                                Pair(7, ElementsAre(SessionId{12})),
                                Pair(9, ElementsAre(SessionId{11}, SessionId{12}))));
}

// Rank 0 has heard so much that rank 1 is told it over turns.
class CoordinatorMissedTest : public CoordinatorDurabilityTest {
 protected:
  static constexpr int64_t kMissed = 5000;

  void SetUp() override {
    CoordinatorDurabilityTest::SetUp();
    Join(1, 2);
    Store(Join(2, 2));
    Restart();
  }
  Effects ComeBack(int64_t session) {
    std::vector<v1::CoordinatorMessage> heard;
    for (int64_t position = 1; position <= kMissed; ++position)
      heard.push_back(PlanAt(position, position, "t"));
    return Resume(session, 0, Launched(kMissed, std::move(heard)), "c0ffee", kMissed);
  }
  bool HasMoreToDo() const { return state_->NextDeadline() == absl::InfinitePast(); }
  // What is told of it; what else is said is in last_.
  std::vector<int64_t> Note(Effects effects) {
    std::vector<int64_t> positions;
    for (const Outgoing& out : effects.outgoing) {
      const auto* deliver = std::get_if<Deliver>(&out);
      if (deliver != nullptr && deliver->message->has_plan())
        positions.push_back(deliver->message->position());
    }
    last_ = std::move(effects);
    return positions;
  }
  // Until a part of it is told.
  std::vector<int64_t> BeginToTell() {
    Resume(12, 1);
    std::vector<int64_t> told = Note(ComeBack(11));
    while (told.empty() && HasMoreToDo()) told = Note(Pass(absl::ZeroDuration()));
    EXPECT_LT(told.size(), static_cast<size_t>(kMissed));
    EXPECT_THAT(Resumed(last_), IsEmpty());
    return told;
  }

  Effects last_;
};

TEST_F(CoordinatorMissedTest, TheGenerationGoesOnWhenAllIsTold) {
  std::vector<int64_t> told = BeginToTell();
  ASSERT_FALSE(told.empty());
  while (Resumed(last_).empty()) {
    ASSERT_TRUE(HasMoreToDo()) << "and others may come in between";
    const std::vector<int64_t> more = Note(Pass(absl::ZeroDuration()));
    told.insert(told.end(), more.begin(), more.end());
  }
  EXPECT_THAT(Resumed(last_), ElementsAre(11, 12));
  ASSERT_EQ(told.size(), static_cast<size_t>(kMissed));
  for (int64_t i = 0; i < kMissed; ++i) ASSERT_EQ(told[static_cast<size_t>(i)], i + 1);
  EXPECT_EQ(Job().phase(), v1::JOB_PHASE_RUNNING);
}

// Rank 1 has acted on more by then than it has reported.
TEST_F(CoordinatorMissedTest, WhoeverGoesMeanwhileMakesAllComeAgain) {
  ASSERT_FALSE(BeginToTell().empty());
  const Effects gone = Do(SessionEnded{SessionId{11}, "reset"});
  EXPECT_THAT(Refusal(gone), StatusIs(absl::StatusCode::kUnavailable,
                                      HasSubstr("takes up generation 1 of job train anew")));
  EXPECT_THAT(Text(gone, Event::Kind::kJobRestored), HasSubstr("it had 2 members"));
  // It has heard all by now.
  Resume(22, 1, Launched(kMissed, {}), "c0ffee", kMissed);
  Note(ComeBack(21));
  while (Resumed(last_).empty() && HasMoreToDo()) Note(Pass(absl::ZeroDuration()));
  EXPECT_THAT(Resumed(last_), ElementsAre(21, 22));
  EXPECT_EQ(Job().phase(), v1::JOB_PHASE_RUNNING);
}

TEST_F(CoordinatorMissedTest, WhoGoesBeforeAnythingIsToldIsWaitedForAlone) {
  Resume(12, 1);
  ASSERT_THAT(Note(ComeBack(11)), IsEmpty());
  const Effects gone = Do(SessionEnded{SessionId{11}, "reset"});
  EXPECT_THAT(Refusal(gone), IsOk());
  Note(ComeBack(21));
  while (Resumed(last_).empty() && HasMoreToDo()) Note(Pass(absl::ZeroDuration()));
  EXPECT_THAT(Resumed(last_), ElementsAre(21, 12));
}

// It would be told in the turn in which it hears of the generation, and there is no such thing: its
// members say nothing to all without it.
TEST_F(CoordinatorMissedTest, WhoHasNotHeardOfTheGenerationCannotLackMuchOfIt) {
  v1::WorkerMessage message;
  *message.mutable_join() = JoinOf("w2");
  Do(SessionMessage{SessionId{13}, message});
  std::vector<int64_t> told = Note(ComeBack(11));
  while (Aborted(last_).reason().empty() && HasMoreToDo()) told = Note(Pass(absl::ZeroDuration()));
  EXPECT_THAT(Aborted(last_).reason(), HasSubstr("rank 1 has not heard of the generation"));
  EXPECT_THAT(told, IsEmpty());
}

}  // namespace
}  // namespace coordd
