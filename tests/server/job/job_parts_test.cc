// What a job has besides its workers, each by itself: its generation, its token, its record,
// counts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <variant>
#include <vector>

#include "server/job/current_generation.h"
#include "server/job/dismissals.h"
#include "server/job/drains.h"
#include "server/job/executed_counts.h"
#include "server/job/forming.h"
#include "server/job/job_token.h"
#include "server/job/job_workers.h"
#include "server/job/waiting_news.h"
#include "tests/server/support/builders.h"
#include "tests/support/start_time.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class CurrentGenerationTest : public ::testing::Test {
 protected:
  const ServerOptions options_ = {};
  CurrentGeneration current_{
      {"train", Epoch{1}, Generation{3}}, options_, {SessionId{5}, SessionId{6}}, false};
};

TEST_F(CurrentGenerationTest, ItsDamageOnlyGrows) {
  EXPECT_TRUE(current_.intact());
  EXPECT_TRUE(current_.Worsen(Damage::kAsked));
  EXPECT_FALSE(current_.Worsen(Damage::kAsked));
  EXPECT_FALSE(current_.Worsen(Damage::kLeft));
  EXPECT_TRUE(current_.Worsen(Damage::kLost));
  EXPECT_EQ(current_.damage(), Damage::kLost);
  EXPECT_FALSE(current_.intact());
}

TEST_F(CurrentGenerationTest, ItsMembersHearHowItEndedAndWhoIsGone) {
  v1::Departure gone;
  gone.set_rank(1);
  current_.AddDeparted(gone);
  ASSERT_TRUE(current_.Worsen(Damage::kAsked));
  current_.Explain("generation 3 ended: enough");
  const v1::Abort abort = current_.AbortOf(/*reforms=*/true);
  EXPECT_EQ(abort.reason(), "generation 3 ended: enough");
  EXPECT_TRUE(abort.asked());
  EXPECT_TRUE(abort.in_flight());
  EXPECT_TRUE(abort.report_process_sets()) << "its sets are not known here";
  EXPECT_THAT(abort.departures(), SizeIs(1));
  EXPECT_FALSE(current_.AbortOf(/*reforms=*/false).report_process_sets());
}

TEST_F(CurrentGenerationTest, AnOldIncarnationIsDroppedByItsOwnSession) {
  current_.KeepOld("a", SessionId{5});
  current_.DropOld("a", SessionId{6});
  EXPECT_EQ(current_.OldOf("a"), SessionId{5});
  current_.DropOld("a", SessionId{5});
  EXPECT_EQ(current_.OldOf("a"), std::nullopt);
}

TEST(AddDeparture, ForgetsTheOldestOfMany) {
  std::deque<v1::Departure> departures;
  for (size_t i = 0; i <= kMaxDepartures; ++i) {
    v1::Departure departure;
    departure.set_rank(static_cast<int32_t>(i));
    AddDeparture(departures, departure);
  }
  EXPECT_THAT(departures, SizeIs(kMaxDepartures));
  EXPECT_EQ(departures.front().rank(), 1);
}

TEST(ExecutedCounts, TheLargerOfWhatWasToldAndPlanned) {
  ExecutedCounts counts;
  counts.Tell({.batches = 9, .bytes = 10}, {});
  counts.Tell({.batches = 4, .bytes = 20}, {});
  EXPECT_EQ(counts.InGeneration({.batches = 5, .bytes = 100}).batches, 9);
  EXPECT_EQ(counts.InGeneration({.batches = 5, .bytes = 100}).bytes, 100);
  counts.EndGeneration({.batches = 5, .bytes = 100});
  EXPECT_EQ(counts.before().batches, 9);
  EXPECT_EQ(counts.before().bytes, 100);
  EXPECT_EQ(counts.InGeneration({}).batches, 0);
  counts.ForgetBefore();
  EXPECT_EQ(counts.before().batches, 0);
}

// Members tell what they have executed since they began, in whatever generation.
TEST(ExecutedCounts, CountOfEachGenerationWhatIsNew) {
  ExecutedCounts counts;
  counts.Tell({.batches = 10, .bytes = 100}, {});
  counts.EndGeneration({});
  counts.Tell({.batches = 12, .bytes = 120}, {});                            // it was in both
  counts.Tell({.batches = 3, .bytes = 30}, ExecutedCounts::Count{10, 100});  // it is new
  EXPECT_EQ(counts.InGeneration({}).batches, 3);
  EXPECT_EQ(counts.InGeneration({}).bytes, 30);
  counts.EndGeneration({});
  EXPECT_EQ(counts.before().batches, 13);
  EXPECT_EQ(counts.before().bytes, 130);
}

class FormingTest : public ::testing::Test {
 protected:
  ServerOptions options_;
};

TEST_F(FormingTest, TriesAgainLaterAndLaterAndNeverWhereNothingHelps) {
  Forming forming;
  const absl::Status passing = absl::ResourceExhaustedError("the disk is full");
  const absl::Duration first = forming.Failed(Generation{3}, passing);
  EXPECT_EQ(forming.Failed(Generation{3}, passing), 2 * first);
  for (int i = 0; i < 20; ++i) forming.Failed(Generation{3}, passing);
  EXPECT_EQ(forming.Failed(Generation{3}, passing), absl::Seconds(10));
  EXPECT_THAT(forming.not_stored(), HasSubstr("generation 3 was not announced"));
  forming.Stored();
  EXPECT_THAT(forming.not_stored(), IsEmpty());
  EXPECT_EQ(forming.Failed(Generation{3}, passing), first);
  EXPECT_EQ(forming.Failed(Generation{3}, absl::FailedPreconditionError("another coordd has it")),
            absl::InfiniteDuration());
}

TEST_F(FormingTest, ItsRecordIsThatOfTheLastOneThatFormed) {
  Forming forming;
  Effects effects;
  const Turn turn{kStart, effects};
  const auto propose = [&](int64_t number) {
    v1::JobRecord record;
    record.set_generation(number);
    forming.Propose(std::make_unique<NextGeneration>(
                        record, v1::CoordinatorMessage(), SetsLeft(), std::vector<Rank>(),
                        std::make_shared<GenerationState>(
                            GenerationIdentity{"train", Epoch{1}, Generation{number}}, options_,
                            std::vector<SessionId>{SessionId{1}})),
                    turn);
  };
  propose(4);
  EXPECT_TRUE(forming.making());
  EXPECT_TRUE(forming.next()->Continue());
  EXPECT_FALSE(forming.making());
  EXPECT_EQ(forming.record().generation(), 0);
  propose(5);
  EXPECT_EQ(forming.Take(Generation{4}), nullptr) << "another one is proposed";
  EXPECT_TRUE(forming.next()->Continue());
  const auto next = forming.Take(Generation{5});
  ASSERT_NE(next, nullptr);
  forming.Formed(*next, turn);
  EXPECT_EQ(forming.record().generation(), 5);
}

TEST(JobToken, OfARestoredJobTheHashDecidesUntilSomebodyHasTheToken) {
  const std::string cluster = "cluster";
  JobToken before("train", cluster);
  before.Begin("secret");
  JobToken token("train", cluster);
  token.Restore(before.Record());
  EXPECT_FALSE(token.Is("secret"));
  EXPECT_THAT(token.Check("guess"),
              StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr("wrong token for job train")));
  EXPECT_THAT(token.Check(""),
              StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr("no token for job train")));
  EXPECT_THAT(token.Check("secret"), IsOk());
  EXPECT_TRUE(token.Is("secret"));
}

TEST(Dismissals, AnswersEachCallOnceOrAllWithWhatHasHappened) {
  Dismissals dismissals;
  dismissals.Await({.answer = {.call = CallId{7}}, .closes_node = true});
  dismissals.Await({.answer = {.call = CallId{8}}});
  const auto taken = dismissals.Take(CallId{7});
  ASSERT_TRUE(taken.has_value());
  EXPECT_TRUE(taken->closes_node);
  EXPECT_FALSE(dismissals.Take(CallId{7}).has_value());
  Effects effects;
  dismissals.Fail(absl::AbortedError("the job has ended"), effects);
  dismissals.Fail(absl::AbortedError("the job has ended"), effects);
  ASSERT_THAT(effects.outgoing, SizeIs(1));
  EXPECT_THAT(std::get<DismissAnswer>(effects.outgoing[0]).status,
              StatusIs(absl::StatusCode::kAborted, HasSubstr("ended")));
}

TEST(Dismissals, AnEmptyRecordIsStoredOnlyOverAnother) {
  Dismissals dismissals;
  EXPECT_FALSE(dismissals.Store(/*is_empty=*/true));
  EXPECT_TRUE(dismissals.Store(/*is_empty=*/false));
  EXPECT_TRUE(dismissals.Store(/*is_empty=*/true));
  EXPECT_FALSE(dismissals.Store(/*is_empty=*/true));
  dismissals.Restore(true);
  EXPECT_TRUE(dismissals.TakeStored());
  EXPECT_FALSE(dismissals.TakeStored());
}

TEST(DrainsAwaited, TheOthersWaitForThemUntilOneGenerationFormsOrAllComeBack) {
  Drains drains;
  drains.AwaitUntil(kStart);
  EXPECT_EQ(drains.awaited_until(), kStart);
  drains.ForgetGone();
  EXPECT_EQ(drains.awaited_until(), absl::InfinitePast());
  drains.AwaitUntil(kStart);
  drains.Suspend();
  EXPECT_EQ(drains.awaited_until(), absl::InfinitePast());
}

JobWorker JobWorkerOf(const std::string& worker_id) {
  JobWorker worker;
  worker.join = JoinOf(worker_id);
  return worker;
}

TEST(JobWorkers, CountForAdmissionUntilTheyAreReleasedWhetherInOrNot) {
  JobWorkers workers;
  workers.Add(SessionId{1}, JobWorkerOf("a"));
  EXPECT_TRUE(workers.Counts("a"));
  EXPECT_THAT(workers.Check(JoinOf("a")),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("a")));
  workers.Release(workers.at(SessionId{1}));
  EXPECT_THAT(workers.Check(JoinOf("a")), IsOk());
  EXPECT_TRUE(workers.contains(SessionId{1}));
  workers.Add(SessionId{2}, JobWorkerOf("b"));
  const JobWorker b = workers.Take(SessionId{2});
  EXPECT_EQ(workers.Find(SessionId{2}), nullptr);
  EXPECT_EQ(workers.counted(), 1u) << "its owner has not released it";
  workers.Release(b);
  EXPECT_EQ(workers.counted(), 0u);
}

TEST(JobWorkers, DepartInTheOrderInWhichTheirStreamsEnded) {
  JobWorkers workers;
  for (int32_t i = 0; i < 3; ++i)
    workers.Add(SessionId{i}, JobWorkerOf(std::string(1, static_cast<char>('a' + i))));
  EXPECT_FALSE(workers.anyone_departs());
  EXPECT_EQ(workers.NextDeparture(), absl::InfiniteFuture());
  workers.StreamEnded(SessionId{2}, kStart, "reset");
  workers.StreamEnded(SessionId{0}, kStart + absl::Seconds(2), "reset");
  EXPECT_TRUE(workers.anyone_departs());
  EXPECT_EQ(workers.NextDeparture(), kStart);
  EXPECT_THAT(workers.DueToDepart(kStart), ElementsAre(SessionId{2}));
  workers.at(SessionId{0}).exit.emplace();  // its launcher has told why
  EXPECT_THAT(workers.DueToDepart(kStart), ElementsAre(SessionId{2}, SessionId{0}));
  workers.Remove(SessionId{2});
  workers.Remove(SessionId{0});
  EXPECT_FALSE(workers.anyone_departs());
}

TEST(WaitingNews, OnceASecondAtMostAndOnlyWhenItHasChanged) {
  WaitingNews news;
  EXPECT_FALSE(news.IsDue(kStart));
  EXPECT_EQ(news.NextDeadline(), absl::InfiniteFuture());
  news.Changed();
  EXPECT_TRUE(news.IsDue(kStart));
  news.Forget();
  news.Told(kStart);
  news.Changed();
  EXPECT_FALSE(news.IsDue(kStart + absl::Milliseconds(999)));
  EXPECT_EQ(news.NextDeadline(), kStart + WaitingNews::kInterval);
  news.NotBefore(kStart + absl::Seconds(3));
  EXPECT_FALSE(news.IsDue(kStart + WaitingNews::kInterval));
  EXPECT_TRUE(news.IsDue(kStart + absl::Seconds(3)));
}

}  // namespace
}  // namespace coordd
