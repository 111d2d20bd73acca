// What decides for a job without being one: who may join, whether a message is timely, how a worker
// has gone, what a generation leaves, what is told of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/protocol/proto_convert.h"
#include "server/job/departure.h"
#include "server/job/inheritance.h"
#include "server/job/job_history.h"
#include "server/job/job_messages.h"
#include "server/job/job_view.h"
#include "server/job/join_rules.h"
#include "server/job/link_verdict.h"
#include "server/job/message_age.h"
#include "server/job/rank_stacks.h"
#include "server/job/waiting_news.h"
#include "tests/server/support/builders.h"
#include "tests/server/support/job_parts.h"
#include "tests/support/start_time.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

// --- join_rules ---

class JoinRules : public ::testing::Test {
 protected:
  absl::Status May(const v1::Join& join) {
    return MayJoin(join, job_.View(), absl::OkStatus(), kStart + absl::Seconds(60));
  }
  JobParts job_;
};

TEST_F(JoinRules, ALaterWorkerAgreesWithTheFirst) {
  job_.Begin(/*min_workers=*/2, /*max_workers=*/4);
  v1::Join join = JoinOf("late");
  EXPECT_THAT(May(join), IsOk());
  join.mutable_limits()->set_max_workers(5);
  EXPECT_THAT(May(join), StatusIs(absl::StatusCode::kFailedPrecondition,
                                  HasSubstr("max_workers 5, the job has 4")));
  join.clear_limits();
  join.set_on_failure(v1::ON_FAILURE_CONTINUE);
  EXPECT_THAT(May(join),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("says on_failure")));
}

TEST_F(JoinRules, TheTokenOfAnotherRunIsExplainedBeforeAnythingElse) {
  job_.Begin(2, 4);
  const absl::Status wrong = absl::UnauthenticatedError("wrong token for job train");
  v1::Join join = JoinOf("late");
  join.mutable_limits()->set_max_workers(5);
  EXPECT_THAT(MayJoin(join, job_.View(), wrong, kStart),
              StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr("another run")));
}

TEST_F(JoinRules, WhoAsksAgainWaitsForOneThatMayBeDead) {
  job_.Begin(1, 1);
  job_.Wait(SessionId{1}, "a");
  v1::Join join = JoinOf("b");
  join.mutable_asking_for()->set_seconds(5);
  job_.workers.at(SessionId{1}).heartbeat_before = kStart + absl::Seconds(58);
  EXPECT_THAT(May(join), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("")));
  job_.workers.at(SessionId{1}).heartbeat_before = kStart;
  EXPECT_THAT(May(join), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("")));
}

TEST_F(JoinRules, AChildOfAWorkerIsTold) {
  job_.Begin(1, 1);
  job_.Wait(SessionId{1}, "a");
  job_.workers.at(SessionId{1}).join.set_launch("run.0.0");
  v1::Join join = JoinOf("b");
  join.set_launch("run.0.0");
  EXPECT_THAT(May(join), StatusIs(absl::StatusCode::kResourceExhausted,
                                  HasSubstr("is it a child of that worker?")));
}

TEST_F(JoinRules, NobodyIsTakenAfterTheLastGeneration) {
  job_.Begin(1, 4);
  job_.reforming.GiveUp("--reset-limit 3 is reached");
  EXPECT_THAT(May(JoinOf("late")), StatusIs(absl::StatusCode::kFailedPrecondition,
                                            HasSubstr("was its last one, --reset-limit 3")));
}

TEST(JobLimits, TheFirstWorkersWishesGoBeforeTheServers) {
  ServerOptions options;
  options.min_workers = 2;
  options.max_workers_per_job = 8;
  v1::Join join = JoinOf("first");
  EXPECT_EQ(LimitsOf(join, "train", options)->min_workers, 2);
  join.mutable_limits()->set_min_workers(3);
  EXPECT_EQ(LimitsOf(join, "train", options)->min_workers, 3);
  join.mutable_limits()->set_max_workers(2);
  EXPECT_THAT(LimitsOf(join, "train", options).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("min_workers 3 is more than max_workers 2")));
  join.mutable_limits()->set_max_workers(9);
  EXPECT_THAT(LimitsOf(join, "train", options).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("at most 8 per job")));
}

// --- message_age ---

class MessageAgeTest : public ::testing::Test {
 protected:
  static v1::WorkerMessage Of(int64_t epoch, int64_t generation) {
    return MessageOf(Epoch{epoch}, Generation{generation});
  }
  static v1::WorkerMessage Ready(int64_t epoch, int64_t generation) {
    v1::WorkerMessage message = Of(epoch, generation);
    message.mutable_tensors_ready();
    return message;
  }
  MessageAge member_{.epoch = Epoch{2}, .generation = Generation{5}};
};

TEST_F(MessageAgeTest, AMembersWordIsOfItsGeneration) {
  EXPECT_EQ(IsTimely(Ready(2, 5), member_).value(), true);
  EXPECT_EQ(IsTimely(Ready(2, 4), member_).value(), false);
  EXPECT_EQ(IsTimely(Ready(1, 5), member_).value(), false);
  EXPECT_THAT(IsTimely(Ready(2, 6), member_).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("do not exist yet")));
  EXPECT_THAT(IsTimely(Ready(3, 5), member_).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("do not exist yet")));
}

TEST_F(MessageAgeTest, BeforeItsMembershipAWorkerSaysWhatNeedsNone) {
  const MessageAge waits{.epoch = Epoch{2}};
  v1::WorkerMessage heartbeat = Of(0, 0);
  heartbeat.mutable_heartbeat();
  EXPECT_EQ(IsTimely(heartbeat, waits).value(), true);
  EXPECT_THAT(IsTimely(Ready(2, 0), waits).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("before any Membership")));
}

TEST_F(MessageAgeTest, ASurvivorThatWaitsLivesAndSaysGoodbye) {
  const MessageAge survivor{.epoch = Epoch{2}, .previous = Generation{5}};
  v1::WorkerMessage leave = Of(2, 5), heartbeat = Of(2, 5);
  leave.mutable_leave();
  heartbeat.mutable_heartbeat();
  EXPECT_EQ(IsTimely(leave, survivor).value(), true);
  EXPECT_EQ(IsTimely(heartbeat, survivor).value(), true);
  EXPECT_EQ(IsTimely(Ready(2, 5), survivor).value(), false);
}

TEST_F(MessageAgeTest, BehindTheEndOnlyWhatMayMakeItWorseCounts) {
  MessageAge over = member_;
  over.damage = Damage::kLeft;
  v1::WorkerMessage failed = Of(2, 5), report = Of(2, 5);
  failed.mutable_collective_failed();
  report.mutable_recovery_report();
  EXPECT_EQ(IsTimely(Ready(2, 5), over).value(), false);
  EXPECT_EQ(IsTimely(failed, over).value(), true);
  EXPECT_EQ(IsTimely(report, over).value(), false) << "none follows";
  over.follows = true;
  EXPECT_EQ(IsTimely(report, over).value(), true);
  EXPECT_EQ(IsTimely(report, member_).value(), false) << "it is not over";
}

// --- departure ---

TEST(Departure, OfALostMemberSaysWhatItsLauncherKnows) {
  JobWorker worker;
  worker.join = JoinOf("a");
  worker.generation = Generation{3};
  worker.place.rank = Rank{2};
  EXPECT_THAT(
      DepartureOf(worker, v1::DEPARTURE_CAUSE_CONNECTION_LOST, "reset", /*lost=*/true).detail(),
      "was lost: its connection closed without a goodbye (reset)");
  worker.exit.emplace().set_signal(9);
  const v1::Departure told =
      DepartureOf(worker, v1::DEPARTURE_CAUSE_CONNECTION_LOST, "reset", /*lost=*/true);
  EXPECT_THAT(told.detail(), HasSubstr("SIGKILL"));
  EXPECT_EQ(told.rank(), 2);
  worker.generation = Generation{0};
  EXPECT_EQ(DepartureOf(worker, v1::DEPARTURE_CAUSE_LEFT, "", false).rank(), -1);
}

TEST(Departure, WhoWasAskedToLeaveDamagesAnIntactGenerationLessThanOthers) {
  const Reforming goes_on({.on_failure = OnFailure::kContinue});
  EXPECT_EQ(DamageOf(v1::DEPARTURE_CAUSE_DRAINED, goes_on, Damage::kNone), Damage::kAsked);
  EXPECT_EQ(DamageOf(v1::DEPARTURE_CAUSE_DRAINED, goes_on, Damage::kLost), Damage::kLeft);
  EXPECT_EQ(DamageOf(v1::DEPARTURE_CAUSE_DRAINED, Reforming(), Damage::kNone), Damage::kLeft);
  EXPECT_EQ(DamageOf(v1::DEPARTURE_CAUSE_LEASE_EXPIRED, goes_on, Damage::kNone), Damage::kLost);
}

TEST(Departure, OfThoseWhoDoNotComeBackIsToldOnce) {
  JobParts job;
  v1::Departure gone;
  gone.set_worker_id("a");
  gone.set_detail("was lost some time ago");
  Effects effects;
  EXPECT_THAT(NoteDepartures({gone}, job.drains, job.history, job.messages, effects), SizeIs(1));
  EXPECT_THAT(NoteDepartures({gone}, job.drains, job.history, job.messages, effects), SizeIs(1));
  EXPECT_THAT(job.history.departures(), SizeIs(1));
  EXPECT_THAT(effects.events, SizeIs(1));
}

// --- job_history ---

v1::LaunchedExit KilledOf(const std::string& launch) {
  v1::LaunchedExit exit;
  exit.set_launch(launch);
  exit.mutable_exit()->set_signal(9);
  return exit;
}

TEST(JobHistory, AnExitIsNewsOfADepartureOnce) {
  JobHistory history;
  v1::Departure departure;
  departure.set_launch("run.0.1");
  departure.set_rank(1);
  departure.set_detail("was lost");
  history.Add(departure);
  const JobHistory::ProcessNews news = history.NoteExit(KilledOf("run.0.1"));
  EXPECT_TRUE(news.departed);
  EXPECT_THAT(news.sentence.value(), AllOf(HasSubstr("rank 1"), HasSubstr("SIGKILL")));
  EXPECT_THAT(history.departures().front().detail(), HasSubstr("was lost; it was killed"));
  EXPECT_FALSE(history.NoteExit(KilledOf("run.0.1")).sentence.has_value());
  const JobHistory::ProcessNews stranger = history.NoteExit(KilledOf("run.0.7"));
  EXPECT_FALSE(stranger.departed);
  EXPECT_THAT(stranger.sentence.value(), HasSubstr("had not joined"));
}

TEST(JobHistory, IsOfOneRun) {
  JobHistory history;
  v1::Departure departure;
  departure.set_launch("run.0.1");
  history.Add(departure);
  history.ForgetEarlierRun("");
  history.ForgetEarlierRun("run-1.0.1");
  EXPECT_THAT(history.departures(), SizeIs(1));
  history.ForgetEarlierRun("other.0.0");
  EXPECT_THAT(history.departures(), IsEmpty());
}

// --- inheritance ---

class SurvivorsTest : public ::testing::Test {
 protected:
  SurvivorsTest() {
    job_.Begin(1, 4, OnFailure::kContinue);
    job_.reforming.Broken("a rank was lost", /*lost=*/true, /*left=*/false, kStart);
  }
  void Survive(SessionId session, const std::string& id, int32_t rank, int64_t held,
               int64_t completed) {
    JobWorker& worker = job_.Wait(session, id);
    worker.previous_rank = rank;
    v1::LaneReport& lane = *worker.report.add_lanes();
    lane.set_held(held);
    lane.set_completed(completed);
  }
  void Report(SessionId session, const v1::ProcessSets& sets) {
    JobWorker& worker = job_.workers.at(session);
    EXPECT_THAT(worker.saying.Add(sets, /*size=*/128), IsOk());
    EXPECT_THAT(job_.workers.TakeReport(worker, /*is_whole=*/true), IsOk());
  }

  JobParts job_;
  Survivors survivors_{job_.workers, job_.reforming};
};

TEST_F(SurvivorsTest, WhatIsStoredIsWhatIsAnnounced) {
  Survive(SessionId{1}, "a", 0, 5, 4);
  Survive(SessionId{2}, "b", 2, 5, 5);
  const std::vector<SessionId> both = {SessionId{1}, SessionId{2}};
  ASSERT_THAT(survivors_.Check(both), IsOk());
  const std::vector<v1::LaneRepair> repairs = survivors_.Repairs(both);
  ASSERT_THAT(repairs, SizeIs(1));
  EXPECT_EQ(repairs[0].completed(), 5);
  EXPECT_EQ(survivors_.Repairs(both)[0].completed(), 5);
  EXPECT_EQ(survivors_.Left(both).last(), ProcessSetId{0});
  EXPECT_THAT(survivors_.Moved({SessionId{2}, SessionId{1}}),
              ElementsAre(Rank{1}, Rank{-1}, Rank{0}));
  EXPECT_TRUE(survivors_.Any(both));
}

TEST_F(SurvivorsTest, HearHowTheirNodesLieInRacksWhereAllKnowWhatToDoWithIt) {
  std::vector<SessionId> all;
  for (int32_t rank = 0; rank < 3; ++rank) {
    all.push_back(SessionId{rank + 1});
    Survive(all.back(), absl::StrCat("w", rank), rank, 0, 0);
    v1::Join& join = job_.workers.at(all.back()).join;
    join.mutable_host()->set_node_id(absl::StrCat("node", rank));
    join.mutable_host()->add_topology(absl::StrCat("rack", rank / 2));
    join.set_knows_topology(rank != 1);
  }
  EXPECT_THAT(survivors_.TopologyOf(all).levels, IsEmpty());
  job_.workers.at(SessionId{2}).join.set_knows_topology(true);
  EXPECT_THAT(survivors_.TopologyOf(all).levels,
              ElementsAre(ElementsAre(DomainRun{0, 1, 2}, DomainRun{1, 1, 1})));
}

TEST_F(SurvivorsTest, ProgramsThatWereToldDifferentThingsDoNotGoOn) {
  Survive(SessionId{1}, "a", 0, /*held=*/3, /*completed=*/3);
  Survive(SessionId{2}, "b", 2, 5, 5);
  EXPECT_THAT(survivors_.Check({SessionId{1}, SessionId{2}}),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("0")));
  EXPECT_THAT(survivors_.Check({SessionId{2}}), IsOk());
}

TEST_F(SurvivorsTest, SetsAreThoseThatCoorddKnowsOrElseTheNewestThatIsSaid) {
  Survive(SessionId{1}, "a", 0, 0, 0);
  Survive(SessionId{2}, "b", 1, 0, 0);
  Report(SessionId{1}, ProcessSetsOf({{1, {0, 1}}, {2, {0, 1}}}, /*last=*/2, /*position=*/5));
  Report(SessionId{2}, ProcessSetsOf({{2, {0, 1}}}, /*last=*/2, /*position=*/4));
  const std::vector<SessionId> both = {SessionId{1}, SessionId{2}};
  const auto first = [&] {
    SetsLeft::Walk walk;
    int64_t entries = 100;
    return walk.Next(survivors_.Left(both), entries).value().id;
  };
  EXPECT_EQ(first(), ProcessSetId{2}) << "of the end of set 1 rank 1 has heard";
  const auto known = std::make_shared<ProcessSets>(2);
  ASSERT_THAT(known->Restore(ProcessSetId{3}, Ranks({0, 1}), /*is_pair=*/false), IsOk());
  survivors_.KeepSets(SetsLeft(known, {}));
  EXPECT_EQ(first(), ProcessSetId{3});
  Effects effects;
  survivors_.ForgetSets(Turn{kStart, effects});
  EXPECT_EQ(first(), ProcessSetId{2});
}

// A thousand survivors report the same sets, which are no more than one of them says.
TEST_F(SurvivorsTest, SetsThatAllReportAlikeAreKeptAndCountedOnce) {
  const auto budget = std::make_shared<ByteBudget>(4 << 20);
  job_.workers.Bind(budget);
  std::vector<int32_t> ranks(100);
  std::iota(ranks.begin(), ranks.end(), 0);
  v1::ProcessSets sets;
  for (int32_t number = 1; number <= 200; ++number) {
    v1::ProcessSet& set = *sets.add_sets();
    set.set_process_set(number);
    set.mutable_ranks()->Assign(ranks.begin(), ranks.end());
  }
  sets.set_last_process_set(200);
  constexpr int64_t kSurvivors = 100;
  for (int64_t i = 1; i <= kSurvivors; ++i) {
    Survive(SessionId{i}, absl::StrCat("w", i), static_cast<int32_t>(i - 1), 0, 0);
    Report(SessionId{i}, sets);
  }
  EXPECT_EQ(job_.workers.at(SessionId{1}).its_sets.sets,
            job_.workers.at(SessionId{kSurvivors}).its_sets.sets);
  EXPECT_LE(budget->words()->used(), 2 * static_cast<int64_t>(sets.SpaceUsedLong()));
}

TEST(LostState, SaysWhatIsLost) {
  EXPECT_THAT(LostStateText(Generation{4}, 1), HasSubstr("the steps of 1 batch that"));
  EXPECT_THAT(LostStateText(Generation{4}, 0), HasSubstr("what they had done is lost"));
}

// --- link_verdict ---

TEST(LinkVerdict, PartsWithAnEndOfEachLinkAndRemembersBoth) {
  JobParts job;
  job.Begin(1, 4);
  for (int32_t rank = 0; rank < 3; ++rank)
    job.Wait(SessionId{rank + 1}, absl::StrCat("w", rank)).blamed_at = absl::InfinitePast();
  const ServerOptions options;
  const GenerationState state({"train", Epoch{1}, Generation{3}}, options,
                              {SessionId{1}, SessionId{2}, SessionId{3}});
  Blame blame;
  blame.Report(Rank{0}, Rank{1});
  const auto evicted = PartWith(blame, state, job.workers, kStart);
  ASSERT_THAT(evicted, SizeIs(1));
  EXPECT_EQ(evicted[0].session, SessionId{2});
  EXPECT_THAT(evicted[0].detail, HasSubstr("was evicted: nothing comes over the network from"));
  EXPECT_EQ(job.workers.at(SessionId{1}).blamed_at, kStart);
  EXPECT_EQ(job.workers.at(SessionId{3}).blamed_at, absl::InfinitePast());
}

// --- rank_stacks ---

TEST(RankStacks, WhatNobodyHasAskedForIsNotTaken) {
  const ServerOptions options;
  GenerationState state({"train", Epoch{1}, Generation{3}}, options, {SessionId{1}});
  JobWorker member;
  EXPECT_FALSE(WantsStack(member, state, kStart)) << "nobody waits for it";
  EXPECT_THAT(NoteStack(member, "Thread 1\n  train.py:7 step\n", state), IsEmpty());
  member.stack_asked = true;
  EXPECT_EQ(NoteStack(member, "Thread 1\n  train.py:7 step\n  train.py:1 main\n", state),
            "train.py:7 step, called at train.py:1 main");
}

// A framework has dozens of frames between a program and a call that waits.
TEST(RankStacks, TheProgramsOwnFrameComesFirst) {
  const ServerOptions options;
  GenerationState state({"train", Epoch{1}, Generation{3}}, options, {SessionId{1}});
  JobWorker member;
  member.stack_asked = true;
  const auto installed = [](int line) {
    return absl::StrCat("  File \"/env/lib/python3.11/site-packages/keras/a.py\", line ", line,
                        " in f\n");
  };
  const std::string own = "  File \"/data/ann/train.py\", line 20 in main\n";
  const std::string deep = absl::StrCat("Thread 1\n", installed(1), installed(2), installed(3),
                                        installed(4), own, installed(5), "Thread 2\n", own);
  EXPECT_THAT(NoteStack(member, deep, state),
              AllOf(StartsWith("File \"/data/ann/train.py\", line 20 in main, in File \"/env/"),
                    EndsWith("line 3 in f")));
  // Nothing of it is the program's, or it is near.
  EXPECT_THAT(NoteStack(member, absl::StrCat(installed(1), installed(2)), state),
              EndsWith("line 1 in f, called at File "
                       "\"/env/lib/python3.11/site-packages/keras/a.py\", line 2 in f"));
  EXPECT_THAT(NoteStack(member, absl::StrCat(installed(1), own, installed(2)), state),
              HasSubstr("line 1 in f, called at File \"/data/ann/train.py\""));
}

// --- job_view ---

TEST(JobStage, IsTheProductOfItsParts) {
  JobParts job;
  EXPECT_EQ(StageOf(job.View()), JobStage::kEnded) << "nobody has begun it";
  job.Begin(1, 4, OnFailure::kContinue);
  EXPECT_EQ(StageOf(job.View()), JobStage::kGathering);
  job.Form({SessionId{1}, SessionId{2}});
  EXPECT_EQ(StageOf(job.View()), JobStage::kNegotiating);
  EXPECT_THAT(CheckConsistency(job.View()), IsOk());
  job.generation->Worsen(Damage::kLost);
  EXPECT_EQ(StageOf(job.View()), JobStage::kWindingUp);
  EXPECT_THAT(CheckConsistency(job.View()), StatusIs(absl::StatusCode::kInternal, HasSubstr("")))
      << "the rendezvous has not heard of it";
  job.reforming.Broken("a rank was lost", true, false, kStart);
  EXPECT_EQ(StageOf(job.View()), JobStage::kReporting);
  job.generation.reset();
  EXPECT_EQ(StageOf(job.View()), JobStage::kFollowing);
  job.resume.emplace(v1::JobRecord(), kStart);
  EXPECT_EQ(StageOf(job.View()), JobStage::kReturning);
}

TEST(JobView, CountsWhatWasExecutedInAllGenerations) {
  JobParts job;
  job.Begin(1, 4);
  job.history.executed().Tell({.batches = 3, .bytes = 30}, {});
  job.history.executed().EndGeneration({});
  job.history.executed().Tell({.batches = 7, .bytes = 70}, {});
  EXPECT_EQ(ExecutedBy(job.View()).batches, 3);
  job.Form({SessionId{1}});
  EXPECT_EQ(ExecutedBy(job.View()).batches, 7);
  v1::JobState state;
  Describe(job.View(), kStart, &state);
  EXPECT_EQ(state.batches_total(), 7);
  EXPECT_EQ(state.size(), 1);
}

// --- job_messages, waiting_news ---

TEST(JobMessages, CarryTheEpochAndTheGenerationThatTheyAreAbout) {
  JobParts job;
  job.Begin(1, 4);
  job.Form({SessionId{1}});
  Effects effects;
  job.messages.Newcomers({SessionId{1}}, effects);
  job.messages.Emit(Event::Kind::kJobEnded, "one\ntwo", effects);
  const v1::CoordinatorMessage& told = *std::get<Deliver>(effects.outgoing.at(0)).message;
  EXPECT_EQ(told.epoch(), 1);
  EXPECT_EQ(told.generation(), ToInt(job.rendezvous.generation()));
  EXPECT_EQ(effects.events.at(0).job, "train");
  EXPECT_THAT(effects.events.at(0).text, ::testing::Not(HasSubstr("\n")));
}

TEST(WaitingNewsOfAJob, MembersHearOnlyWhatTheyCanActOn) {
  JobParts job;
  job.Begin(1, 4);
  job.Form({SessionId{1}});
  job.Wait(SessionId{2}, "late");
  Effects effects;
  WaitingNews news;
  news.Changed();
  news.Tell({.members_may_act = false, .reason = "full"}, job.workers, job.messages,
            {kStart, effects});
  ASSERT_THAT(effects.outgoing, SizeIs(1));
  EXPECT_THAT(std::get<Deliver>(effects.outgoing[0]).to, ElementsAre(SessionId{2}));
  news.Changed();
  news.Tell({.members_may_act = true, .reason = "full"}, job.workers, job.messages,
            {kStart + absl::Seconds(1), effects});
  ASSERT_THAT(effects.outgoing, SizeIs(3));
  EXPECT_THAT(std::get<Deliver>(effects.outgoing[2]).to, ElementsAre(SessionId{1}));
  EXPECT_EQ(std::get<Deliver>(effects.outgoing[2]).message->newcomers().waiting(), 1);
}

}  // namespace
}  // namespace coordd
