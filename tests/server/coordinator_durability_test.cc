// What CoordinatorState stores before it announces it, and what it knows after a restart. The disk
// is this test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>

#include "absl/strings/str_cat.h"
#include "server/coordinator_state.h"
#include "server/job_record.h"
#include "tests/server/builders.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Code = absl::StatusCode;

class CoordinatorDurabilityTest : public ::testing::Test {
 protected:
  void SetUp() override { Restart(); }
  void TearDown() override { EXPECT_THAT(state_->CheckConsistency(), IsOk()); }

  // Another coordd on the same disk.
  Effects Restart() {
    const auto restored = ParseRecords({"c0ffee", Epoch{++epoch_}, disk_});
    EXPECT_THAT(restored, IsOk());
    Effects effects;
    state_ = std::make_unique<CoordinatorState>(options_, *restored, now_, effects);
    return effects;
  }
  Effects Do(const Inbound& in) {
    Effects effects;
    state_->Step(in, now_, effects);
    state_->Tick(now_, effects);
    return effects;
  }
  Effects Join(int64_t session, int32_t size, const std::string& token = "secret",
               int32_t max = -1) {
    v1::WorkerMessage message;
    *message.mutable_join() = JoinOf(absl::StrCat("w", session));
    message.mutable_join()->set_token(token);
    message.mutable_join()->mutable_limits()->set_min_workers(size);
    message.mutable_join()->mutable_limits()->set_max_workers(max < 0 ? size : max);
    return Do(SessionMessage{SessionId{session}, message});
  }
  Effects Leave(int64_t session, int64_t generation) {
    v1::WorkerMessage message = MessageOf(Epoch{epoch_}, Generation{generation});
    message.mutable_leave();
    return Do(SessionMessage{SessionId{session}, message});
  }
  Effects Pass(absl::Duration duration) {
    now_ += duration;
    Effects effects;
    state_->Tick(now_, effects);
    return effects;
  }
  void Write(const Effects& effects) {
    for (const Persist& persist : effects.persist) {
      for (const StateWrite& write : persist.writes) {
        if (write.value.has_value()) {
          disk_[write.key] = *write.value;
        } else {
          disk_.erase(write.key);
        }
      }
    }
  }
  // Everything that asks for it is stored, and said to be.
  Effects Store(const Effects& effects) {
    Write(effects);
    Effects all;
    for (const Persist& persist : effects.persist) {
      if (persist.generation == Generation{0}) continue;
      Effects more = Do(Persisted{persist.job, persist.generation});
      all.outgoing.insert(all.outgoing.end(), more.outgoing.begin(), more.outgoing.end());
      all.events.insert(all.events.end(), more.events.begin(), more.events.end());
    }
    return all;
  }
  static std::vector<int64_t> Announced(const Effects& effects) {
    std::vector<int64_t> generations;
    for (const Outgoing& out : effects.outgoing) {
      const auto* deliver = std::get_if<Deliver>(&out);
      if (deliver != nullptr && deliver->message->has_membership()) {
        generations.push_back(deliver->message->generation());
      }
    }
    return generations;
  }
  static std::string Text(const Effects& effects, Event::Kind kind) {
    for (const Event& event : effects.events) {
      if (event.kind == kind) return event.text;
    }
    return "none";
  }
  static absl::Status Refusal(const Effects& effects) {
    for (const Outgoing& out : effects.outgoing) {
      if (const auto* close = std::get_if<CloseSession>(&out)) return close->status;
    }
    return absl::OkStatus();
  }
  v1::JobState Job() const {
    v1::ServerState state;
    state_->Describe("train", now_, &state);
    return state.jobs_size() == 1 ? state.jobs(0) : v1::JobState();
  }

  ServerOptions options_;
  std::map<std::string, std::string> disk_;
  int64_t epoch_ = 0;
  absl::Time now_ = absl::FromUnixSeconds(1000);
  std::unique_ptr<CoordinatorState> state_;
};

TEST_F(CoordinatorDurabilityTest, AnnouncesAGenerationOnceItIsStored) {
  Join(1, 2);
  const Effects proposed = Join(2, 2);
  ASSERT_EQ(proposed.persist.size(), 1u);
  EXPECT_EQ(proposed.persist[0].generation, Generation{1});
  EXPECT_THAT(Announced(proposed), testing::IsEmpty());
  EXPECT_EQ(Job().phase(), v1::JOB_PHASE_GATHERING);
  EXPECT_THAT(Announced(Pass(absl::Minutes(3))), testing::IsEmpty());  // however slow the disk is
  const Effects stored = Store(proposed);
  EXPECT_THAT(Announced(stored), testing::ElementsAre(1, 1));
  EXPECT_EQ(Job().phase(), v1::JOB_PHASE_RUNNING);
  // The leases start now, not when it was proposed.
  EXPECT_THAT(Text(Pass(options_.lease / 2), Event::Kind::kWorkerDeparted), "none");
}

TEST_F(CoordinatorDurabilityTest, OnlyASlowDiskIsWorthAMessage) {
  const Effects proposed = Join(1, 1);
  ASSERT_EQ(proposed.persist.size(), 1u);
  EXPECT_TRUE(proposed.outgoing.empty());
  EXPECT_TRUE(Pass(absl::Milliseconds(900)).outgoing.empty());
  const Effects slow = Pass(absl::Milliseconds(100));
  ASSERT_EQ(slow.outgoing.size(), 1u);
  EXPECT_THAT(std::get<Deliver>(slow.outgoing[0]).message->waiting().reason(),
              HasSubstr("is being stored"));
}

TEST_F(CoordinatorDurabilityTest, WhatIsStoredHasNoTokenInIt) {
  Join(1, 1, "a token that nobody may read");
  Write(Join(2, 1, "a token that nobody may read"));
  Effects proposed = Pass(absl::ZeroDuration());
  Write(proposed);
  Restart();
  Write(Join(3, 1, "a token that nobody may read"));
  for (const auto& [key, value] : disk_) EXPECT_THAT(value, Not(HasSubstr("nobody may read")));
  EXPECT_THAT(disk_, Not(testing::IsEmpty()));
}

TEST_F(CoordinatorDurabilityTest, ANumberWhoseMemberHasGoneMeanwhileIsNeverUsed) {
  Join(1, 2);
  const Effects proposed = Join(2, 2);
  Do(SessionEnded{SessionId{2}, "gone"});
  const Effects stored = Store(proposed);
  EXPECT_THAT(Announced(stored), testing::IsEmpty());
  EXPECT_THAT(Announced(Store(Join(3, 2))), testing::ElementsAre(2, 2));
}

TEST_F(CoordinatorDurabilityTest, WhoComesWhileItIsStoredWaitsForTheNextOne) {
  Join(1, 1, "secret", 3);
  const Effects proposed = Pass(options_.settling_window);
  ASSERT_EQ(proposed.persist.size(), 1u);
  Join(2, 1, "secret", 3);
  EXPECT_THAT(Announced(Store(proposed)), testing::ElementsAre(1));
  EXPECT_EQ(Job().size(), 1);
  EXPECT_EQ(Job().joined(), 2);
}

TEST_F(CoordinatorDurabilityTest, AFullDiskIsToldToThoseWhoWaitAndTriedAgain) {
  const Effects first = Join(1, 1);
  ASSERT_EQ(first.persist.size(), 1u);
  const Effects failed =
      Do(Persisted{"train", Generation{1}, absl::ResourceExhaustedError("the disk is full")});
  EXPECT_THAT(Text(failed, Event::Kind::kNotStored), HasSubstr("the disk is full"));
  EXPECT_TRUE(failed.persist.empty());
  std::string told;
  for (const Outgoing& out : Pass(absl::Seconds(1)).outgoing) {
    const auto* deliver = std::get_if<Deliver>(&out);
    if (deliver != nullptr) told = deliver->message->waiting().reason();
  }
  EXPECT_THAT(told, HasSubstr("the disk is full"));
}

TEST_F(CoordinatorDurabilityTest, RetriesWithNewNumbersAndGrowingPauses) {
  Effects proposed = Join(1, 1);
  std::vector<absl::Duration> pauses;
  for (int64_t number = 1; number <= 12; ++number) {
    ASSERT_EQ(proposed.persist.size(), 1u);
    EXPECT_EQ(proposed.persist[0].generation, Generation{number});
    Do(Persisted{"train", Generation{number}, absl::ResourceExhaustedError("full")});
    const absl::Time failed_at = now_;
    do {
      ASSERT_LT(state_->NextDeadline(), absl::InfiniteFuture());
      proposed = Pass(std::max(state_->NextDeadline(), now_) - now_);
    } while (proposed.persist.empty());
    pauses.push_back(now_ - failed_at);
  }
  EXPECT_EQ(pauses.front(), absl::Milliseconds(100));
  EXPECT_EQ(pauses.back(), absl::Seconds(10));
  EXPECT_TRUE(std::is_sorted(pauses.begin(), pauses.end()));
  EXPECT_THAT(Announced(Store(proposed)), testing::ElementsAre(13));
}

TEST_F(CoordinatorDurabilityTest, AfterAFailedSyncNothingFormsAndRunningJobsGoOn) {
  Store(Join(1, 1));
  v1::WorkerMessage other;
  *other.mutable_join() = JoinOf("w9");
  other.mutable_join()->set_job("other");
  const Effects proposed = Do(SessionMessage{SessionId{9}, other});
  const Effects settled = proposed.persist.empty() ? Pass(absl::Seconds(1)) : proposed;
  ASSERT_EQ(settled.persist.size(), 1u);
  const Effects failed = Do(Persisted{"other", Generation{1}, absl::DataLossError("sync failed")});
  EXPECT_THAT(Text(failed, Event::Kind::kNotStored), HasSubstr("no generation any more"));
  EXPECT_TRUE(Pass(absl::Seconds(5)).persist.empty());
  EXPECT_EQ(Job().phase(), v1::JOB_PHASE_RUNNING);
}

TEST_F(CoordinatorDurabilityTest, KnowsItsJobsAfterARestart) {
  Store(Join(1, 1));
  Restart();
  EXPECT_EQ(Job().phase(), v1::JOB_PHASE_GATHERING);
  EXPECT_EQ(Job().min_workers(), 1);
  EXPECT_THAT(Refusal(Join(2, 1, "wrong")), StatusIs(Code::kUnauthenticated, HasSubstr("token")));
  EXPECT_THAT(Refusal(Join(6, 1, "")), StatusIs(Code::kUnauthenticated, HasSubstr("no token")));
  EXPECT_THAT(Refusal(Join(3, 5)), StatusIs(Code::kFailedPrecondition, HasSubstr("min_workers")));
  EXPECT_THAT(Announced(Store(Join(4, 1))), testing::ElementsAre(2));
  // Who proved to have the token is the measure from now on.
  EXPECT_THAT(Refusal(Join(5, 1, "wrong")), StatusIs(Code::kUnauthenticated, HasSubstr("token")));
}

TEST_F(CoordinatorDurabilityTest, AJobWhoseMembersDoNotComeBackHasEnded) {
  Store(Join(1, 1));
  const Effects restored = Restart();
  EXPECT_THAT(Text(restored, Event::Kind::kJobRestored), HasSubstr("1 members"));
  EXPECT_THAT(Text(Pass(options_.lease - absl::Seconds(1)), Event::Kind::kJobEnded), "none");
  EXPECT_LE(state_->NextDeadline(), now_ + absl::Seconds(1));
  const Effects ended = Pass(absl::Seconds(1));
  EXPECT_THAT(Text(ended, Event::Kind::kJobEnded), HasSubstr("came back"));
  Write(ended);
  EXPECT_EQ(Job().phase(), v1::JOB_PHASE_ENDED);
  // The name is free for others, the number is not.
  EXPECT_THAT(Announced(Store(Join(2, 1, "another token"))), testing::ElementsAre(2));
}

TEST_F(CoordinatorDurabilityTest, NeverUsesANumberAgain) {
  for (int64_t number = 1; number <= 6; ++number) {
    EXPECT_THAT(Announced(Store(Join(number, 1))), testing::ElementsAre(number));
    if (number % 2 == 0) {
      Write(Leave(number, number));  // the job ends, and is known to have
      EXPECT_EQ(Job().phase(), v1::JOB_PHASE_ENDED);
    }
    if (number % 3 == 0) Write(Pass(options_.ended_job_retention + options_.lease));  // forgotten
    Restart();
  }
}

TEST_F(CoordinatorDurabilityTest, AForgottenJobLeavesItsHighestNumberBehind) {
  for (int64_t number = 1; number <= 3; ++number) {
    Store(Join(number, 1));
    Write(Leave(number, number));
  }
  EXPECT_TRUE(disk_.contains("job/train"));
  Write(Pass(options_.ended_job_retention));
  EXPECT_FALSE(disk_.contains("job/train"));
  Restart();
  EXPECT_THAT(Announced(Store(Join(9, 1))), testing::ElementsAre(4));
}

TEST_F(CoordinatorDurabilityTest, AnOrderlyStopEndsItsJobs) {
  Store(Join(1, 1));
  Write(Do(StopRequested{"the test stops it"}));
  const Effects restored = Restart();
  EXPECT_THAT(Text(restored, Event::Kind::kJobRestored), "none");
  EXPECT_EQ(Job().phase(), v1::JOB_PHASE_ENDED);
  EXPECT_THAT(Announced(Store(Join(2, 1, "another token"))), testing::ElementsAre(2));
}

TEST_F(CoordinatorDurabilityTest, AnAnswerToAnEarlierProposalChangesNothing) {
  Join(1, 2);
  const Effects first = Join(2, 2);
  Do(SessionEnded{SessionId{2}, "gone"});
  Do(Persisted{"train", Generation{1}});
  const Effects second = Join(3, 2);
  ASSERT_EQ(second.persist.size(), 1u);
  for (const Persisted& late :
       {Persisted{"train", Generation{1}}, Persisted{"train", Generation{7}},
        Persisted{"nobody", Generation{2}}}) {
    EXPECT_THAT(Announced(Do(late)), testing::IsEmpty());
  }
  EXPECT_THAT(Announced(Store(second)), testing::ElementsAre(2, 2));
}

TEST(JobRecord, AdoptedStateGoesOnFarBehindWhatItMayHaveLost) {
  v1::JobRecord record;
  record.set_generation(7);
  StoredState stored{"c0ffee", Epoch{kAdoptionStride + 3}, {}, /*adopted=*/true};
  const StateWrite job = JobWrite("train", record);
  const StateWrite forgotten = ForgottenWrite(Generation{4});
  stored.records = {{job.key, *job.value}, {forgotten.key, *forgotten.value}};
  const auto restored = ParseRecords(stored);
  ASSERT_THAT(restored, IsOk());
  EXPECT_EQ(restored->jobs.at("train").generation(), 7 + kAdoptionStride);
  EXPECT_EQ(restored->last_forgotten, Generation{4 + kAdoptionStride});
}

TEST(JobRecord, SaysWhichRecordIsNone) {
  EXPECT_THAT(ParseRecords({"c0ffee", Epoch{1}, {{"job/train", "\xff\xff"}}}),
              StatusIs(Code::kDataLoss, HasSubstr("job/train")));
}

TEST(JobRecord, TokenHashesTellNothingAndDiffer) {
  EXPECT_EQ(TokenHash("c", "j", ""), "");
  EXPECT_EQ(TokenHash("c", "j", "t"), TokenHash("c", "j", "t"));
  EXPECT_NE(TokenHash("c", "j", "t"), TokenHash("d", "j", "t"));
  EXPECT_NE(TokenHash("c", "j", "t"), TokenHash("c", "k", "t"));
  EXPECT_NE(TokenHash("c", "jt", ""), TokenHash("c", "j", "t"));
}

}  // namespace
}  // namespace coordd
