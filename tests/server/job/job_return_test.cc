// Who comes back to a generation, and who is to go.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "server/job/dismissal_desk.h"
#include "server/job/job_return.h"
#include "tests/server/support/builders.h"
#include "tests/server/support/job_parts.h"
#include "tests/support/start_time.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

// --- job_return ---

// Generation 3 had the members w0 and w1, processes 100 and 101.
class JobReturnTest : public ::testing::Test {
 protected:
  JobReturnTest() {
    record_.set_generation(3);
    for (int32_t rank = 0; rank < 2; ++rank) {
      v1::MemberRecord& member = *record_.add_members();
      member.set_worker_id(absl::StrCat("w", rank));
      member.set_hostname("node0");
      member.set_node_id("node0");
      member.set_pid(100 + rank);
      member.set_launch(absl::StrCat("run.0.", rank));
    }
    back_.Begin(record_, nullptr, "coordd was started again", kStart);
  }
  v1::Join Resuming(int32_t rank, int32_t pid) const {
    v1::Join join = JoinOf(absl::StrCat("w", rank));
    join.set_pid(pid);
    v1::Resume& resume = *join.mutable_resume();
    resume.set_cluster_id("cluster");
    resume.set_epoch(1);
    resume.set_generation(3);
    resume.set_rank(rank);
    return join;
  }
  absl::Status Join(int64_t session, int32_t rank) {
    return back_.Join(SessionId{session}, Resuming(rank, 100 + rank), turn_);
  }
  // That it has heard of nothing.
  absl::Status Report(int64_t session) {
    v1::WorkerMessage message;
    message.set_generation(3);
    message.mutable_resume_report();
    return back_.OnMessage(SessionId{session}, message, std::nullopt, effects_).status();
  }
  std::optional<ReturnFailure> Leave(int64_t session, const std::string& failure,
                                     const std::optional<std::string>& drained) {
    v1::WorkerMessage message;
    message.mutable_leave()->set_failure(failure);
    return back_.OnMessage(SessionId{session}, message, drained, effects_).value();
  }

  v1::JobRecord record_;
  JobParts job_;
  JobReturn back_{job_.options, job_.durability, job_.messages, job_.workers};
  Effects effects_;
  Turn turn_{kStart, effects_};
};

TEST_F(JobReturnTest, IsCompleteWhenAllHaveComeAndSaidWhereTheyAre) {
  ASSERT_THAT(Join(1, 0), IsOk());
  ASSERT_THAT(Join(2, 1), IsOk());
  EXPECT_TRUE(back_.Has(job_.workers.at(SessionId{1})));
  ASSERT_THAT(Report(1), IsOk());
  EXPECT_FALSE(back_.complete());
  ASSERT_THAT(Report(2), IsOk());
  ASSERT_TRUE(back_.complete());
  EXPECT_FALSE(back_.Over().has_value());
  EXPECT_THAT(back_.ByRank(), ElementsAre(SessionId{1}, SessionId{2}));
  const absl::StatusOr<WholeReturn> whole = *back_.Whole(ReportMerge::kEntriesAtOnce, turn_);
  ASSERT_THAT(whole.status(), IsOk());
  EXPECT_EQ(whole->topology.places.size(), 2u);
  EXPECT_EQ(job_.workers.at(SessionId{2}).place.size, 2);
}

// As they were told: in an order that their labels would not give.
TEST_F(JobReturnTest, NodesLieInTheRacksThatAreStored) {
  for (int32_t rank = 0; rank < 2; ++rank) {
    v1::MemberRecord& member = *record_.mutable_members(rank);
    member.set_node_id(absl::StrCat("node", rank));
    member.add_topology(rank == 0 ? "rack2" : "rack1");
  }
  JobReturn back{job_.options, job_.durability, job_.messages, job_.workers};
  back.Begin(record_, nullptr, "coordd was started again", kStart);
  for (int32_t rank = 0; rank < 2; ++rank) {
    ASSERT_THAT(back.Join(SessionId{rank + 1}, Resuming(rank, 100 + rank), turn_), IsOk());
    v1::WorkerMessage message;
    message.set_generation(3);
    message.mutable_resume_report();
    ASSERT_THAT(back.OnMessage(SessionId{rank + 1}, message, std::nullopt, effects_).status(),
                IsOk());
  }
  const absl::StatusOr<WholeReturn> whole = *back.Whole(ReportMerge::kEntriesAtOnce, turn_);
  ASSERT_THAT(whole.status(), IsOk());
  EXPECT_THAT(whole->topology.member_of_rank, ElementsAre(0, 1));
  EXPECT_THAT(whole->topology.levels, ElementsAre(ElementsAre(DomainRun{0, 2, 1})));
}

TEST_F(JobReturnTest, TheLaterStreamOfAWorkerIsItsPlace) {
  ASSERT_THAT(Join(1, 0), IsOk());
  ASSERT_THAT(Join(7, 0), IsOk());
  EXPECT_FALSE(job_.workers.contains(SessionId{1}));
  ASSERT_THAT(effects_.outgoing, SizeIs(1));
  EXPECT_THAT(std::get<CloseSession>(effects_.outgoing[0]).status,
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("another stream")));
  back_.Drop(SessionId{7});
  EXPECT_TRUE(job_.workers.empty());
  EXPECT_THAT(Join(8, 0), IsOk());
}

// What both have heard alike costs once, and nothing more when they are gone.
TEST_F(JobReturnTest, ReportsAreCountedForTheOwnerOfTheJob) {
  const auto budget = std::make_shared<ByteBudget>(4 * (int64_t{100} << 10));
  back_.Bind(budget);
  ASSERT_THAT(Join(1, 0), IsOk());
  ASSERT_THAT(Join(2, 1), IsOk());
  const auto report = [this](int64_t session, const std::string& name) {
    v1::WorkerMessage message;
    message.set_generation(3);
    message.mutable_resume_report()->set_more(true);
    v1::CoordinatorMessage& heard = *message.mutable_resume_report()->add_received();
    message.mutable_resume_report()->add_received_by(0);
    heard.mutable_plan()->add_batches()->add_tensors(name);
    return back_.OnMessage(SessionId{session}, message, std::nullopt, effects_).status();
  };
  const std::string a(40 << 10, 'a'), b(40 << 10, 'b');
  EXPECT_THAT(report(1, "small"), IsOk());
  EXPECT_EQ(budget->words()->used(), 0);
  EXPECT_THAT(report(1, a), IsOk());
  const int64_t once = budget->words()->used();
  EXPECT_GT(once, 40 << 10);
  EXPECT_THAT(report(2, a), IsOk());
  EXPECT_EQ(budget->words()->used(), once);
  EXPECT_THAT(report(2, b), StatusIs(absl::StatusCode::kResourceExhausted,
                                     HasSubstr("a quarter of --max-bytes-per-owner")));
  back_.Drop(SessionId{2});
  EXPECT_EQ(budget->words()->used(), once);
  back_.Abandon();
  EXPECT_EQ(budget->words()->used(), 0);
}

// As many process sets as a job may have are half a million allocations and more.
class LongReturnTest : public JobReturnTest {
 protected:
  static constexpr int32_t kSets = 3000;

  // Rank 0 reports so many sets of its own, each with a batch.
  void ComeWithSets() {
    ASSERT_THAT(Join(1, 0), IsOk());
    ASSERT_THAT(Join(2, 1), IsOk());
    ASSERT_THAT(Report(2), IsOk());
    v1::WorkerMessage message;
    message.set_generation(3);
    v1::ResumeReport& report = *message.mutable_resume_report();
    report.set_last_process_set(kSets);
    for (int32_t number = 1; number <= kSets; ++number) {
      AddSet(report, number, absl::StrCat("set", number), {0});
      v1::LanePosition& lane = *report.add_lanes();
      lane.set_lane(number);
      lane.set_launched(number);
    }
    ASSERT_THAT(back_.OnMessage(SessionId{1}, message, std::nullopt, effects_).status(), IsOk());
    ASSERT_TRUE(back_.complete());
  }
  static void AddSet(v1::ResumeReport& report, int32_t number, const std::string& name,
                     const std::vector<int32_t>& ranks) {
    v1::ProcessSetChange& set = *report.add_process_sets();
    set.set_process_set(number);
    set.set_name(name);
    set.mutable_ranks()->Assign(ranks.begin(), ranks.end());
  }
  // In how many turns they are put together, and the generation is restored.
  int Turns(int64_t entries) {
    int turns = 1;
    while (!(whole_ = back_.Whole(entries, turn_)).has_value()) {
      EXPECT_TRUE(back_.merging()) << "others may come in between";
      EXPECT_EQ(back_.NextDeadline(), absl::InfinitePast()) << "it is due at once";
      ++turns;
    }
    return turns;
  }

  Graveyard graveyard_;
  Turn turn_{kStart, effects_, &graveyard_};
  std::optional<absl::StatusOr<WholeReturn>> whole_;
};

TEST_F(LongReturnTest, ProcessSetsAreRestoredOverTurns) {
  ComeWithSets();
  EXPECT_GE(Turns(ReportMerge::kEntriesAtOnce), kSets * 16 / ReportMerge::kEntriesAtOnce);
  ASSERT_THAT(whole_->status(), IsOk());
  EXPECT_EQ((*whole_)->state->process_sets(), kSets);
  EXPECT_THAT((*whole_)->state->CheckConsistency(), IsOk());
}

TEST_F(LongReturnTest, WhatIsRestoredWhenSomebodyGoesIsForNothingAndFreedInParts) {
  ComeWithSets();
  int turns = 0;
  for (; graveyard_.empty() && turns < 20; ++turns)
    ASSERT_FALSE(back_.Whole(ReportMerge::kEntriesAtOnce, turn_).has_value());
  back_.Drop(SessionId{2});
  EXPECT_FALSE(back_.merging());
  back_.BuryEnded(turn_);
  EXPECT_FALSE(graveyard_.empty());
  EXPECT_EQ(graveyard_.Free(), Graveyard::kPiecesATurn) << "there is more than a turn's";
  ASSERT_THAT(Join(3, 1), IsOk());
  ASSERT_THAT(Report(3), IsOk());
  EXPECT_GT(Turns(ReportMerge::kEntriesAtOnce), turns) << "it begins anew";
  ASSERT_THAT(whole_->status(), IsOk());
  EXPECT_EQ((*whole_)->state->process_sets(), kSets);
  EXPECT_EQ((*whole_)->state->session_of(Rank{1}), SessionId{3});
}

TEST_F(LongReturnTest, WhatIsRestoredWhenTheGenerationEndsIsFreedInParts) {
  ComeWithSets();
  for (int i = 0; i < 20; ++i)
    ASSERT_FALSE(back_.Whole(ReportMerge::kEntriesAtOnce, turn_).has_value());
  graveyard_.Bury(back_.Abandon());
  EXPECT_FALSE(back_.under_way());
  EXPECT_EQ(graveyard_.Free(), Graveyard::kPiecesATurn);
  for (int i = 0; i < 100 && !graveyard_.empty(); ++i) graveyard_.Free();
  EXPECT_TRUE(graveyard_.empty());
}

// coordd makes one of two ranks; what says otherwise was no coordd's.
TEST_F(LongReturnTest, APairThatIsReportedTwiceEndsTheGenerationAndNoMore) {
  ASSERT_THAT(Join(1, 0), IsOk());
  ASSERT_THAT(Join(2, 1), IsOk());
  ASSERT_THAT(Report(2), IsOk());
  v1::WorkerMessage message;
  message.set_generation(3);
  for (const int32_t number : {5, 6}) AddSet(*message.mutable_resume_report(), number, "", {0, 1});
  ASSERT_THAT(back_.OnMessage(SessionId{1}, message, std::nullopt, effects_).status(), IsOk());
  EXPECT_EQ(Turns(ReportMerge::kEntriesAtOnce), 1);
  EXPECT_THAT(whole_->status(),
              StatusIs(absl::StatusCode::kInternal,
                       HasSubstr("process sets 5 and 6 are the same pair of ranks [0, 1]")));
}

TEST_F(JobReturnTest, AMemberIsFoundInTheRecordWhateverRankIsSaidToBeIts) {
  v1::Join join = JoinOf("w1");
  join.set_pid(101);
  for (const int32_t rank : {0, 1, 7}) {
    EXPECT_TRUE(back_.IsOfMember(join, record_, Rank{rank}));
    EXPECT_TRUE(back_.IsOfMember(Resuming(1, 101), record_, Rank{rank}));
    EXPECT_FALSE(back_.IsOfMember(JoinOf("stranger"), record_, Rank{rank}));
  }
  join.set_pid(999);
  EXPECT_FALSE(back_.IsOfMember(join, record_, Rank{1}));
  v1::Join other = Resuming(1, 101);
  other.mutable_resume()->set_rank(0);
  EXPECT_FALSE(back_.IsOfMember(other, record_, Rank{1}));
}

TEST_F(JobReturnTest, AnotherProcessUnderTheSameIdEndsTheGeneration) {
  v1::Join join = JoinOf("w1");
  join.set_pid(101);
  EXPECT_TRUE(back_.Concerns(join));
  EXPECT_FALSE(back_.Replaced(join).has_value()) << "it had not heard of the generation";
  join.set_pid(999);
  const auto failure = back_.Replaced(join);
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->damage, Damage::kLost);
  EXPECT_THAT(failure->reason, HasSubstr("rank 1 was replaced: a newer process, pid 999"));
  EXPECT_FALSE(back_.Concerns(JoinOf("stranger")));
}

TEST_F(JobReturnTest, WhoIsMissingAtTheEndIsNamed) {
  ASSERT_THAT(Join(1, 0), IsOk());
  ASSERT_THAT(Report(1), IsOk());
  EXPECT_FALSE(back_.Overdue(turn_).has_value());
  const Turn late{back_.NextDeadline(), effects_};
  const auto failure = back_.Overdue(late);
  ASSERT_TRUE(failure.has_value());
  EXPECT_THAT(failure->reason, HasSubstr("rank 1 (host node0, pid 101) was lost: it did not come"));
  EXPECT_THAT(failure->departures, SizeIs(1));
  const JobReturn::Present present = back_.End(*failure, /*reforms=*/false, turn_);
  EXPECT_THAT(present.by_rank, ElementsAre(SessionId{1}, SessionId{0}));
  EXPECT_THAT(present.sessions, ElementsAre(SessionId{1}));
  EXPECT_FALSE(back_.under_way());
}

TEST_F(JobReturnTest, AGoodbyeEndsItForAllAndADrainOnlyWhenAllOthersAreBack) {
  ASSERT_THAT(Join(1, 0), IsOk());
  ASSERT_THAT(Join(2, 1), IsOk());
  EXPECT_FALSE(Leave(2, "", "was drained: an operator had asked it to leave").has_value());
  EXPECT_FALSE(back_.complete());
  ASSERT_THAT(Report(1), IsOk());
  ASSERT_TRUE(back_.complete());
  const auto over = back_.Over();
  ASSERT_TRUE(over.has_value());
  EXPECT_THAT(over->reason, HasSubstr("was drained"));
  const auto left = Leave(1, "", std::nullopt);
  ASSERT_TRUE(left.has_value());
  EXPECT_EQ(left->damage, Damage::kLeft);
}

TEST_F(JobReturnTest, AProcessWhoseEndIsToldIsNotWaitedFor) {
  ASSERT_THAT(Join(1, 0), IsOk());
  ASSERT_THAT(Report(1), IsOk());
  v1::LaunchedExit exit;
  exit.set_launch("run.0.1");
  EXPECT_FALSE(back_.NoteExit(exit)) << "it ended well";
  exit.mutable_exit()->set_signal(9);
  EXPECT_TRUE(back_.NoteExit(exit));
  ASSERT_TRUE(back_.complete());
  EXPECT_THAT(back_.Over()->reason, HasSubstr("SIGKILL"));
}

TEST_F(JobReturnTest, WhatIsNoReportBreaksTheProtocol) {
  ASSERT_THAT(Join(1, 0), IsOk());
  v1::WorkerMessage message;
  message.mutable_heartbeat();
  EXPECT_THAT(back_.OnMessage(SessionId{1}, message, std::nullopt, effects_).status(), IsOk());
  message.mutable_tensors_ready();
  EXPECT_THAT(back_.OnMessage(SessionId{1}, message, std::nullopt, effects_).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no ResumeReport")));
}

TEST_F(JobReturnTest, AfterASleepAStreamsEndIsExcusedForALease) {
  const absl::Time deadline = back_.NextDeadline();
  EXPECT_FALSE(back_.Excuses(kStart));
  back_.Forgive(absl::Minutes(1), kStart);
  EXPECT_TRUE(back_.Excuses(kStart));
  EXPECT_FALSE(back_.Excuses(kStart + job_.options.lease));
  EXPECT_EQ(back_.NextDeadline(), deadline + absl::Minutes(1));
}

// --- dismissal_desk ---

class DismissalDeskTest : public ::testing::Test {
 protected:
  DismissalDeskTest() {
    job_.Begin(/*min_workers=*/1, /*max_workers=*/8, OnFailure::kRaise);
    job_.Form({SessionId{1}, SessionId{2}});
  }
  void Call(v1::DismissAction action, int32_t rank, bool force = false) {
    DismissCall call{CallId{++last_call_}, {}};
    call.request.set_action(action);
    call.request.set_rank(rank);
    call.request.set_asked_by("alice");
    call.request.set_force(force);
    desk_.OnCall(call, {.size = 2, .generation = job_.rendezvous.generation()}, dismiss_, turn_);
  }
  void Stored(const absl::Status& status) {
    desk_.OnStored(CallId{last_call_}, status, /*returning=*/false, dismiss_, turn_);
  }
  absl::Status Answer() const {
    for (const Outgoing& out : effects_.outgoing)
      if (const auto* answer = std::get_if<DismissAnswer>(&out)) return answer->status;
    return absl::UnknownError("nobody is answered");
  }

  JobParts job_;
  DismissalDesk desk_{job_.options, job_.durability, job_.messages,
                      job_.workers, job_.reforming,  job_.rendezvous};
  std::vector<std::pair<SessionId, v1::DepartureCause>> gone_;
  const std::function<void(SessionId, v1::DepartureCause, const std::string&, const absl::Status&)>
      dismiss_ = [this](SessionId session, v1::DepartureCause cause, const std::string&,
                        const absl::Status&) { gone_.emplace_back(session, cause); };
  int64_t last_call_ = 0;
  Effects effects_;
  Turn turn_{kStart, effects_};
};

TEST_F(DismissalDeskTest, NobodyIsAskedOrAnsweredBeforeItIsStored) {
  Call(v1::DISMISS_ACTION_DRAIN, 1);
  EXPECT_THAT(effects_.outgoing, IsEmpty());
  ASSERT_THAT(effects_.persist, SizeIs(1));
  Stored(absl::OkStatus());
  ASSERT_THAT(effects_.outgoing, SizeIs(2));
  EXPECT_TRUE(std::get<Deliver>(effects_.outgoing[0]).message->has_drain_notice());
  EXPECT_THAT(Answer(), IsOk());
  EXPECT_THAT(desk_.DrainedText("w2", false).value(), HasSubstr("alice had asked it to leave"));
  EXPECT_FALSE(desk_.DrainedText("w1", false).has_value());
  EXPECT_THAT(desk_.DrainedText("w1", true).value(), HasSubstr("its own process"));
}

TEST_F(DismissalDeskTest, WhatCouldNotBeStoredAsksNobody) {
  Call(v1::DISMISS_ACTION_DRAIN, 1);
  Stored(absl::UnavailableError("the disk is full"));
  EXPECT_THAT(Answer(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("nobody was asked")));
  EXPECT_EQ(desk_.drains().size(), 0u);
}

TEST_F(DismissalDeskTest, WhoHasNotLeftInTimeIsEvicted) {
  Call(v1::DISMISS_ACTION_DRAIN, 1);
  Stored(absl::OkStatus());
  desk_.Watch(dismiss_, turn_);
  EXPECT_THAT(gone_, IsEmpty());
  desk_.Watch(dismiss_, {desk_.drains().NextDeadline(), effects_});
  EXPECT_THAT(gone_, ElementsAre(Pair(SessionId{2}, v1::DEPARTURE_CAUSE_EVICTED)));
}

TEST_F(DismissalDeskTest, AJobThatEndsWithTheFirstOfThoseWhoAreOverdueLeavesNoneToEvict) {
  for (int32_t rank = 0; rank < 2; ++rank) {
    Call(v1::DISMISS_ACTION_DRAIN, rank, /*force=*/true);
    Stored(absl::OkStatus());
  }
  const auto ends = [this](SessionId session, v1::DepartureCause cause, const std::string&,
                           const absl::Status&) {
    gone_.emplace_back(session, cause);
    desk_.Fail(effects_);
  };
  desk_.Watch(ends, {kStart + kDefaultDrainGrace, effects_});
  EXPECT_THAT(gone_, SizeIs(1));
}

TEST_F(DismissalDeskTest, WhoeverWouldBeTooFewStayUnlessForced) {
  job_.Begin(2, 8, OnFailure::kRaise);
  Call(v1::DISMISS_ACTION_EVICT, 1);
  EXPECT_THAT(Answer(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                 HasSubstr("only 1 worker of job train would be left")));
  EXPECT_THAT(gone_, IsEmpty());
  Call(v1::DISMISS_ACTION_EVICT, 1, /*force=*/true);
  EXPECT_THAT(gone_, ElementsAre(Pair(SessionId{2}, v1::DEPARTURE_CAUSE_EVICTED)));
}

TEST_F(DismissalDeskTest, ANewcomerThatIsDrainedHasNothingToFinish) {
  job_.Wait(SessionId{3}, "late");
  DismissCall call{CallId{++last_call_}, {}};
  call.request.set_action(v1::DISMISS_ACTION_DRAIN);
  call.request.add_launches("run.0.5");
  job_.workers.at(SessionId{3}).join.set_launch("run.0.5");
  desk_.OnCall(call, {.size = 2}, dismiss_, turn_);
  Stored(absl::OkStatus());
  EXPECT_THAT(gone_, ElementsAre(Pair(SessionId{3}, v1::DEPARTURE_CAUSE_DRAINED)));
}

}  // namespace
}  // namespace coordd
