// The survivors of a loss form the next generation, and coordd dies meanwhile.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "tests/server/support/durability_fixture.h"

namespace coordd {
namespace {

using ::testing::HasSubstr;
using Code = absl::StatusCode;

class CoordinatorRepairDurabilityTest : public CoordinatorDurabilityTest {
 protected:
  void SetUp() override {
    on_failure_ = v1::ON_FAILURE_RAISE;
    CoordinatorDurabilityTest::SetUp();
    for (int64_t session = 1; session <= 2; ++session) Join(session, 2, "secret", 3);
    ASSERT_THAT(Announced(Store(Join(3, 2, "secret", 3))), testing::ElementsAre(1, 1, 1));
  }
  // This rank has heard of its generation's end, and waits.
  Effects ComeBack(int64_t session, int32_t rank, std::optional<int32_t> lost = std::nullopt) {
    v1::ResumeReport report;
    report.set_over("generation 1 ended: rank 2 was lost");
    if (lost.has_value()) report.add_departures()->set_rank(*lost);
    return Resume(session, rank, report);
  }
  Effects Report(int64_t session, int64_t generation = 1) {
    v1::WorkerMessage message = MessageOf(Epoch{epoch_}, Generation{generation});
    message.mutable_recovery_report();
    return Do(SessionMessage{SessionId{session}, message});
  }
};

TEST_F(CoordinatorRepairDurabilityTest, WhoIsKnownToBeLostIsNotWaitedFor) {
  Restart();
  EXPECT_FALSE(Aborted(ComeBack(11, 0, 2)).in_flight());
  const Effects ended = ComeBack(12, 1, 2);
  EXPECT_TRUE(Aborted(ended).reforms());
  EXPECT_EQ(Aborted(ended).reason(), "generation 1 ended: rank 2 was lost");
  ASSERT_EQ(Aborted(ended).departures_size(), 1);
  Report(11);
  Report(12);
  EXPECT_THAT(Announced(Store(PassInTurns(options_.settling_window_after_loss))),
              testing::ElementsAre(2, 2));
  EXPECT_EQ(Job().size(), 2);
}

TEST_F(CoordinatorRepairDurabilityTest, AllWhoMayLiveAreWaitedFor) {
  Restart();
  ComeBack(11, 0);
  EXPECT_FALSE(Aborted(ComeBack(12, 1)).in_flight());
  const Effects ended = PassInTurns(options_.lease + options_.resume_grace);
  EXPECT_TRUE(Aborted(ended).reforms());
  EXPECT_THAT(Aborted(ended).reason(), HasSubstr("rank 2 (host node0, pid 4711) was lost"));
}

TEST_F(CoordinatorRepairDurabilityTest, OneThatIsLostAndCameBackAndWentAgainIsNotWaitedFor) {
  Restart();
  v1::WorkerMessage hello;
  *hello.mutable_join() = JoinOf("w3");
  hello.mutable_join()->mutable_resume()->set_generation(1);
  hello.mutable_join()->mutable_resume()->set_epoch(epoch_ - 1);
  hello.mutable_join()->mutable_resume()->set_rank(2);
  hello.mutable_join()->mutable_resume()->set_cluster_id("c0ffee");
  Do(SessionMessage{SessionId{13}, hello});  // its report has not come yet
  ComeBack(11, 0, 2);
  EXPECT_FALSE(Aborted(ComeBack(12, 1, 2)).reforms());
  EXPECT_TRUE(Aborted(Do(SessionEnded{SessionId{13}, "killed"})).reforms());
}

TEST_F(CoordinatorRepairDurabilityTest, WhoNamesTheLostWithoutAnEndHasNamedNobody) {
  Restart();
  v1::ResumeReport report;
  report.add_departures()->set_rank(2);
  EXPECT_THAT(Resumed(Resume(11, 0, report)), testing::IsEmpty());
  EXPECT_THAT(Resumed(Resume(12, 1, report)), testing::IsEmpty());
  EXPECT_THAT(Resumed(Resume(13, 2)), testing::ElementsAre(11, 12, 13));
}

TEST_F(CoordinatorRepairDurabilityTest, OverIsOverAlsoWhenWhoSaidSoIsGoneAgain) {
  Restart();
  ComeBack(11, 0, 1);
  ComeBack(12, 1, 0);
  Do(SessionEnded{SessionId{11}, "broken"});
  Do(SessionEnded{SessionId{12}, "broken"});
  const Effects ended = Resume(13, 2);
  EXPECT_THAT(Resumed(ended), testing::IsEmpty());
  EXPECT_TRUE(Aborted(ended).reforms());
  EXPECT_EQ(Aborted(ended).departures_size(), 2);
}

TEST_F(CoordinatorRepairDurabilityTest, IfAllAreBackTheGenerationIsOverAllTheSame) {
  Restart();
  Resume(11, 0);
  ComeBack(12, 1);
  const Effects ended = Resume(13, 2);
  EXPECT_THAT(Resumed(ended), testing::IsEmpty());
  EXPECT_TRUE(Aborted(ended).reforms());
}

TEST_F(CoordinatorRepairDurabilityTest, AGenerationThatWasStoredAndNotAnnouncedIsAnnounced) {
  Do(SessionEnded{SessionId{3}, "killed"});
  Report(1);
  Report(2);
  const Effects proposed = Pass(options_.settling_window_after_loss);
  ASSERT_EQ(proposed.persist.size(), 1u);
  Write(proposed);
  Restart();
  EXPECT_THAT(Announced(ComeBack(11, 0, 2)), testing::IsEmpty());
  EXPECT_THAT(Announced(ComeBack(12, 1, 2)), testing::ElementsAre(2, 2));
  EXPECT_EQ(Job().size(), 2);
  // Who was lost is not in it.
  EXPECT_THAT(Refusal(Resume(13, 2)), StatusIs(Code::kFailedPrecondition, HasSubstr("is over")));
}

TEST_F(CoordinatorRepairDurabilityTest, IfAMemberOfThatOneDiesTooTheOthersFormTheNext) {
  Do(SessionEnded{SessionId{3}, "killed"});
  Report(1);
  Report(2);
  Write(Pass(options_.settling_window_after_loss));
  Restart();
  ComeBack(11, 0, 2);
  const Effects ended = PassInTurns(options_.lease + options_.resume_grace);
  // It hears of the generation, and of its end.
  EXPECT_THAT(Announced(ended), testing::ElementsAre(2));
  EXPECT_TRUE(Aborted(ended).reforms());
  EXPECT_THAT(Aborted(ended).reason(), HasSubstr("generation 2 ended: rank 1"));
  Report(11, 2);
  Join(14, 2, "secret", 3);
  EXPECT_THAT(Announced(Store(PassInTurns(options_.settling_window_after_loss))),
              testing::ElementsAre(3, 3));
}

TEST_F(CoordinatorRepairDurabilityTest, ANewcomerOfTheStoredGenerationIsToldOfIt) {
  Do(SessionEnded{SessionId{3}, "killed"});
  Join(4, 2, "secret", 3);
  Report(1);
  Write(Report(2));
  Restart();
  EXPECT_THAT(Announced(ComeBack(11, 0, 2)), testing::IsEmpty());
  EXPECT_THAT(Announced(Join(4, 2, "secret", 3)), testing::IsEmpty());
  EXPECT_THAT(Announced(ComeBack(12, 1, 2)), testing::ElementsAre(2, 2, 2));
  EXPECT_EQ(Job().size(), 3);
  // And of the end of it, if another member does not come back.
  Restart();
  ComeBack(11, 0, 2);
  Join(4, 2, "secret", 3);
  const Effects ended = PassInTurns(options_.lease + options_.resume_grace);
  EXPECT_THAT(Announced(ended), testing::ElementsAre(2, 2));
  EXPECT_TRUE(Aborted(ended).reforms());
  EXPECT_THAT(Aborted(ended).reason(), HasSubstr("generation 2 ended: rank 1"));
}

TEST_F(CoordinatorRepairDurabilityTest, AChangeOfMembersIsAskedForAgain) {
  const auto ask = [this](int64_t session) {
    v1::WorkerMessage message = MessageOf(Epoch{epoch_}, Generation{1});
    message.mutable_change_members();
    return Do(SessionMessage{SessionId{session}, message});
  };
  EXPECT_TRUE(Aborted(ask(1)).reforms());
  // coordd dies before anybody hears that.
  Restart();
  Resume(11, 0);
  Resume(12, 1);
  const Effects resumed = Resume(13, 2);
  EXPECT_THAT(Resumed(resumed), testing::ElementsAre(11, 12, 13));
  // Whoever waited then may not have come back.
  const v1::CoordinatorMessage& last = *std::get<Deliver>(resumed.outgoing.back()).message;
  ASSERT_TRUE(last.has_newcomers());
  EXPECT_EQ(last.newcomers().waiting(), 0);
  const Effects ended = ask(11);
  EXPECT_TRUE(Aborted(ended).reforms());
  EXPECT_THAT(Aborted(ended).reason(), HasSubstr("asked for a change of members"));
  for (int64_t session = 11; session <= 12; ++session) Report(session);
  EXPECT_THAT(Announced(Store(Report(13))), testing::ElementsAre(2, 2, 2));
}

TEST_F(CoordinatorRepairDurabilityTest, AChangeOfMembersOfWhichSomeHaveHeardComesForAll) {
  Restart();
  v1::ResumeReport heard;
  heard.set_over("generation 1 ended: rank 0 asked for a change of members, 1 worker waits");
  Resume(11, 0, heard);
  Join(4, 2, "secret", 4);
  Resume(12, 1);
  const Effects ended = Resume(13, 2, heard);
  EXPECT_TRUE(Aborted(ended).reforms());
  EXPECT_EQ(Aborted(ended).reason(), heard.over());
  EXPECT_EQ(Aborted(ended).departures_size(), 0);
  for (int64_t session = 11; session <= 12; ++session) Report(session);
  EXPECT_THAT(Announced(Store(Report(13))), testing::ElementsAre(2, 2, 2));
}

TEST_F(CoordinatorRepairDurabilityTest, AGoodbyeOfOneThatIsBackEndsTheJobForAll) {
  Restart();
  ComeBack(11, 0);
  ComeBack(12, 1);
  const Effects left = Do(SessionMessage{SessionId{12}, [this] {
                                           v1::WorkerMessage message =
                                               MessageOf(Epoch{epoch_ - 1}, Generation{1});
                                           message.mutable_leave();
                                           return message;
                                         }()});
  EXPECT_FALSE(Aborted(left).reforms());
  EXPECT_THAT(Aborted(left).reason(), HasSubstr("left"));
}

TEST_F(CoordinatorRepairDurabilityTest, NewcomersGetTheRoomThatSurvivorsLeave) {
  Restart();
  for (int64_t session = 20; session < 24; ++session) Join(session, 2, "secret", 3);
  ComeBack(11, 0, 2);
  ComeBack(12, 1, 2);
  Report(11);
  const Effects formed = Store(Report(12));
  EXPECT_THAT(Announced(formed), testing::ElementsAre(2, 2, 2));
  EXPECT_EQ(Job().size(), 3);
  std::vector<int64_t> to;
  for (const Outgoing& out : formed.outgoing) {
    const auto* deliver = std::get_if<Deliver>(&out);
    if (deliver != nullptr && deliver->message->has_membership())
      to.push_back(ToInt(deliver->to.front()));
  }
  EXPECT_THAT(to, testing::ElementsAre(11, 12, 20));
}

}  // namespace
}  // namespace coordd
