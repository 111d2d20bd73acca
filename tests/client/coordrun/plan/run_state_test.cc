#include "client/coordrun/plan/run_state.h"

#include <signal.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/start_time.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Optional;
using ::testing::Pair;

constexpr ProcessEnd kGood = {};
constexpr ProcessEnd kExit3 = {.code = 3, .signal = 0};
constexpr ProcessEnd kKilled = {.code = 0, .signal = SIGKILL};
constexpr ProcessEnd kTerminated = {.code = 0, .signal = SIGTERM};

RunOptions Options(int32_t np) {
  RunOptions options;
  options.np = np;
  options.linger = absl::Seconds(2);
  options.grace = absl::Seconds(5);
  return options;
}

absl::Time At(double seconds) { return kStart + absl::Seconds(seconds); }

TEST(RunState, IsGoodWhenAllAre) {
  RunState state(Options(2), kStart);
  EXPECT_EQ(state.NextDeadline(), absl::InfiniteFuture());
  state.WorkerEnded(1, kGood, At(1));
  EXPECT_FALSE(state.all_ended());
  EXPECT_FALSE(state.ending());
  state.WorkerEnded(0, kGood, At(2));
  EXPECT_TRUE(state.all_ended());
  EXPECT_EQ(state.exit_status(), 0);
  EXPECT_EQ(state.workers()[1].ran, absl::Seconds(1));
}

TEST(RunState, GoesOnWithoutWorkersAsLongAsEnoughAreLeft) {
  RunOptions options = Options(4);
  options.min_np = 2;
  RunState state(options, kStart);
  state.WorkerEnded(3, kGood, At(1));
  state.WorkerEnded(1, kKilled, At(2));
  EXPECT_FALSE(state.ending());
  EXPECT_THAT(state.lost(), ElementsAre(1));
  EXPECT_EQ(state.alive(), 2);
  state.WorkerEnded(0, kExit3, At(3));
  EXPECT_THAT(state.lost(), ElementsAre(1, 0));
  EXPECT_EQ(state.NextDeadline(), absl::InfiniteFuture());
  state.WorkerEnded(2, kGood, At(4));
  EXPECT_TRUE(state.all_ended());
  EXPECT_EQ(state.first_failure(), std::nullopt);
  EXPECT_EQ(state.exit_status(), 0);
}

TEST(RunState, StartsLostWorkersAgainAfterAWhile) {
  RunOptions options = Options(2);
  options.min_np = 1;
  options.max_restarts = 2;
  RunState state(options, kStart);
  state.WorkerEnded(1, kKilled, At(5));
  EXPECT_THAT(state.lost(), ElementsAre(1));
  EXPECT_EQ(state.NextDeadline(), At(6));
  EXPECT_THAT(state.TakeRestarts(At(5.9)), IsEmpty());
  EXPECT_THAT(state.TakeRestarts(At(6)), ElementsAre(1));
  state.WorkerRestarted(1, At(6));
  EXPECT_THAT(state.lost(), IsEmpty());
  EXPECT_EQ(state.alive(), 2);
  // The next time it takes twice as long.
  state.WorkerEnded(1, kExit3, At(7));
  EXPECT_EQ(state.workers()[1].ran, absl::Seconds(1));
  EXPECT_EQ(state.NextDeadline(), At(9));
  EXPECT_THAT(state.TakeRestarts(At(9)), ElementsAre(1));
  state.WorkerRestarted(1, At(9));
  // Those were all.
  state.WorkerEnded(1, kExit3, At(10));
  EXPECT_EQ(state.NextDeadline(), absl::InfiniteFuture());
  EXPECT_THAT(state.lost(), ElementsAre(1));
}

TEST(RunState, StartsNobodyAgainWhenTheProgramComesToItsEnd) {
  RunOptions options = Options(3);
  options.min_np = 1;
  options.max_restarts = 5;
  RunState state(options, kStart);
  state.WorkerEnded(1, kKilled, At(5));
  EXPECT_FALSE(state.all_ended());
  state.WorkerEnded(0, kGood, At(5.5));
  EXPECT_THAT(state.TakeRestarts(At(100)), IsEmpty());
  state.WorkerEnded(2, kKilled, At(101));
  EXPECT_TRUE(state.all_ended());
  EXPECT_EQ(state.exit_status(), 0);
}

RunOptions Discovering(int32_t np) {
  RunOptions options = Options(np);
  options.min_np = 2;
  options.discovery_script = "hosts";
  options.cooldown_min = absl::Seconds(2);
  options.cooldown_max = absl::Seconds(5);
  return options;
}

TEST(RunState, IsOverWhenNoGenerationOfTheJobFollows) {
  RunOptions options = Options(3);
  options.min_np = 1;
  options.max_restarts = 5;
  RunState state(options, kStart);
  state.JobEnded("", At(1));
  EXPECT_FALSE(state.ending());
  state.WorkerEnded(1, kKilled, At(5));
  state.WorkerEnded(0, kExit3, At(5.5));
  state.JobEnded("--reset-limit 1 is reached", At(6));
  EXPECT_TRUE(state.ending());
  EXPECT_EQ(state.job_end(), "--reset-limit 1 is reached");
  EXPECT_THAT(state.TakeRestarts(At(100)), IsEmpty());
  EXPECT_EQ(state.NextDeadline(), At(8));
  state.Tick(At(8));
  EXPECT_THAT(state.TakeSignals(), ElementsAre(SIGTERM));
  state.WorkerEnded(2, kTerminated, At(8.1));
  EXPECT_TRUE(state.all_ended());
  EXPECT_EQ(state.exit_status(), 3) << "that of the last that was lost";
}

TEST(RunState, IsNotGoodWhenAWorkerLeftThatTheJobNeeded) {
  RunState state(Discovering(2), kStart);
  state.SlotWent(1, At(1));
  state.WorkerEnded(1, kTerminated, At(2));
  state.JobEnded("--reset-limit 1 is reached", At(2));
  state.WorkerEnded(0, kGood, At(3));
  EXPECT_TRUE(state.all_ended());
  EXPECT_EQ(state.exit_status(), 1);
}

TEST(RunState, WaitsForHostsWhenThoseOfAllAreGone) {
  RunOptions options = Discovering(1);
  options.elastic_timeout = absl::Seconds(30);
  RunState state(options, kStart);
  state.SlotWent(0, At(1));
  EXPECT_FALSE(state.awaits_hosts());
  state.WorkerEnded(0, kTerminated, At(2));
  EXPECT_TRUE(state.awaits_hosts());
  EXPECT_FALSE(state.all_ended());
  EXPECT_EQ(state.NextDeadline(), At(32));
  state.SlotCame(0, At(20));
  EXPECT_FALSE(state.awaits_hosts());
  EXPECT_THAT(state.TakeRestarts(At(20)), ElementsAre(0));
  state.WorkerRestarted(0, At(20));
  // Now for good.
  state.SlotWent(0, At(40));
  state.WorkerEnded(0, kTerminated, At(41));
  state.Tick(At(71));
  EXPECT_TRUE(state.all_ended());
  EXPECT_TRUE(state.deserted());
  EXPECT_EQ(state.exit_status(), 1);
}

TEST(RunState, SlotsThatComeAreStartedAndThoseThatGoAreEnded) {
  RunState state(Discovering(1), kStart);
  for (int i = 0; i < 2; ++i) state.AddSlot(kStart);
  EXPECT_EQ(state.alive(), 1);
  state.SlotCame(1, At(1));
  state.SlotCame(2, At(1));
  EXPECT_THAT(state.TakeRestarts(At(1)), ElementsAre(1, 2));
  state.WorkerRestarted(1, At(1));
  state.WorkerRestarted(2, At(1));
  EXPECT_EQ(state.alive(), 3);
  // Its end is none of the run's; it has the time that all have to end.
  state.SlotWent(0, At(2));
  EXPECT_THAT(state.TakeSingleSignals(), ElementsAre(Pair(0, SIGTERM)));
  state.Tick(state.NextDeadline());
  EXPECT_THAT(state.TakeSingleSignals(), ElementsAre(Pair(0, SIGKILL)));
  state.WorkerEnded(0, kKilled, At(8));
  EXPECT_FALSE(state.ending());
  EXPECT_THAT(state.lost(), IsEmpty());
  // One that comes back while it is still there is started when it has ended.
  state.SlotWent(1, At(9));
  state.SlotCame(1, At(9.5));
  EXPECT_THAT(state.TakeRestarts(At(9.5)), IsEmpty());
  state.WorkerEnded(1, kTerminated, At(10));
  EXPECT_THAT(state.TakeRestarts(At(10)), ElementsAre(1));
  state.WorkerRestarted(1, At(10));
  state.WorkerEnded(1, kGood, At(20));
  EXPECT_TRUE(state.only_restarted_are_alive());
  state.WorkerEnded(2, kGood, At(20));
  EXPECT_TRUE(state.all_ended());
  EXPECT_EQ(state.exit_status(), 0);
}

TEST(RunState, AWorkerThatLeavesAtACommitHasTimeForItBeforeItIsEnded) {
  RunState state(Discovering(2), kStart);
  state.SlotWent(1, At(1), absl::Seconds(60));
  EXPECT_THAT(state.TakeSingleSignals(), IsEmpty());
  EXPECT_EQ(state.NextDeadline(), At(61));
  state.Tick(At(61));
  EXPECT_THAT(state.TakeSingleSignals(), ElementsAre(Pair(1, SIGTERM)));
  state.Tick(At(66));
  EXPECT_THAT(state.TakeSingleSignals(), ElementsAre(Pair(1, SIGKILL)));
  // One that has left in time hears nothing more.
  state.SlotWent(0, At(70), absl::Seconds(60));
  state.WorkerEnded(0, kGood, At(71));
  state.Tick(At(200));
  EXPECT_THAT(state.TakeSingleSignals(), IsEmpty());
}

TEST(RunState, ADrainedWorkerIsNoFailureAndNotStartedAgain) {
  RunOptions options = Options(3);
  options.min_np = 2;
  options.max_restarts = 5;
  RunState state(options, kStart);
  state.DrainedWorkerEnded(0, kGood, At(1));
  EXPECT_THAT(state.lost(), IsEmpty());
  EXPECT_THAT(state.TakeRestarts(At(100)), IsEmpty());
  EXPECT_FALSE(state.ending());
  // The others are not through: one of them that fails is too many now, however it is counted.
  state.WorkerEnded(1, kKilled, At(2));
  EXPECT_TRUE(state.ending());
  EXPECT_THAT(state.first_failure(), Optional(1));
}

TEST(RunState, AWorkerThatDiesUnderNoticeIsNoFailureEither) {
  RunOptions options = Options(3);
  options.min_np = 1;
  RunState state(options, kStart);
  state.DrainedWorkerEnded(0, kKilled, At(1));
  EXPECT_THAT(state.lost(), IsEmpty());
  EXPECT_TRUE(state.workers()[0].drained);
  state.WorkerEnded(1, kGood, At(2));
  state.WorkerEnded(2, kGood, At(2));
  EXPECT_TRUE(state.all_ended());
  EXPECT_EQ(state.exit_status(), 0);
}

TEST(RunState, WhenAllWereAskedToLeaveTheProgramIsNotDone) {
  RunOptions options = Options(2);
  options.min_np = 1;
  RunState state(options, kStart);
  state.DrainedWorkerEnded(0, kGood, At(1));
  state.DrainedWorkerEnded(1, kGood, At(1));
  EXPECT_TRUE(state.deserted());
  EXPECT_EQ(state.exit_status(), 1);
}

TEST(RunState, WithHostsThatChangeOnlyTheLastFailureEndsTheRun) {
  RunState state(Discovering(2), kStart);
  state.WorkerEnded(0, kExit3, At(1));
  EXPECT_FALSE(state.ending());
  // A slot that fails is used again after its own cooldown: 2, 4, 5, 5, ... seconds.
  double now = 1;
  for (const double wait : {2, 4, 5, 5}) {
    EXPECT_EQ(state.NextDeadline(), At(now + wait));
    now += wait;
    EXPECT_THAT(state.TakeRestarts(At(now)), ElementsAre(0));
    state.WorkerRestarted(0, At(now));
    state.WorkerEnded(0, kExit3, At(now));
  }
  state.RestartFailed(0, At(now));
  EXPECT_EQ(state.NextDeadline(), At(now + 5));
  state.WorkerEnded(1, kKilled, At(now));
  EXPECT_TRUE(state.all_ended());
  EXPECT_EQ(state.exit_status(), 137);
}

TEST(RunState, WithoutAnyHostLeftTheRunHasFailed) {
  RunState state(Discovering(1), kStart);
  state.SlotWent(0, At(1));
  state.WorkerEnded(0, kTerminated, At(1));
  state.Tick(At(1) + RunOptions().elastic_timeout);
  EXPECT_TRUE(state.deserted());
  EXPECT_EQ(state.exit_status(), 1);
}

TEST(RunState, EndsWhenFewerThanTheMinimumAreLeft) {
  RunOptions options = Options(3);
  options.min_np = 2;
  RunState state(options, kStart);
  state.WorkerEnded(0, kKilled, At(1));
  state.WorkerEnded(2, kExit3, At(2));
  EXPECT_THAT(state.lost(), ElementsAre(0));
  EXPECT_THAT(state.first_failure(), Optional(2));
  EXPECT_TRUE(state.ending());
  state.WorkerEnded(1, kTerminated, At(3));
  EXPECT_EQ(state.exit_status(), 3);
}

TEST(RunState, LetsTheOthersNoticeAFailureThenTerminatesThenKills) {
  RunState state(Options(3), kStart);
  state.WorkerEnded(1, kExit3, At(1));
  EXPECT_THAT(state.first_failure(), Optional(1));
  EXPECT_THAT(state.TakeSignals(), IsEmpty());
  EXPECT_EQ(state.NextDeadline(), At(1) + RunState::kBlameWindow);
  state.Tick(At(1) + RunState::kBlameWindow);
  EXPECT_TRUE(state.blame_is_final());
  EXPECT_EQ(state.NextDeadline(), At(3));
  state.Tick(At(2.9));
  EXPECT_THAT(state.TakeSignals(), IsEmpty());
  state.Tick(At(3));
  EXPECT_THAT(state.TakeSignals(), ElementsAre(SIGTERM));
  EXPECT_EQ(state.NextDeadline(), At(8));
  state.Tick(At(8));
  EXPECT_THAT(state.TakeSignals(), ElementsAre(SIGKILL));
  EXPECT_EQ(state.NextDeadline(), absl::InfiniteFuture());
  state.Tick(At(100));
  EXPECT_THAT(state.TakeSignals(), IsEmpty());
}

TEST(RunState, TheFirstFailureDecidesTheStatus) {
  RunState state(Options(3), kStart);
  state.WorkerEnded(2, kKilled, At(1));
  state.WorkerEnded(0, kExit3, At(1.1));
  state.WorkerEnded(1, kTerminated, At(3));
  EXPECT_THAT(state.first_failure(), Optional(2));
  EXPECT_EQ(state.exit_status(), 137);
}

TEST(RunState, AWorkerThatWasKilledIsTheCauseOfExitsThatCameToLightJustBefore) {
  constexpr ProcessEnd kAborted = {.code = 0, .signal = SIGABRT};
  RunState state(Options(4), kStart);
  state.WorkerEnded(0, kExit3, At(1));
  EXPECT_FALSE(state.blame_is_final());
  state.WorkerEnded(1, kAborted, At(1.01));
  EXPECT_THAT(state.first_failure(), Optional(0)) << "an abort may be a consequence, too";
  state.WorkerEnded(2, kKilled, At(1.02));
  EXPECT_THAT(state.first_failure(), Optional(2));
  state.WorkerEnded(3, {.code = 0, .signal = SIGSEGV}, At(1.03));
  EXPECT_THAT(state.first_failure(), Optional(2)) << "the first of them";
  EXPECT_TRUE(state.blame_is_final());
  EXPECT_EQ(state.exit_status(), 137);
}

TEST(RunState, AWorkerThatWasKilledMuchLaterIsNotTheCause) {
  RunState state(Options(3), kStart);
  state.WorkerEnded(0, kExit3, At(1));
  state.WorkerEnded(1, kKilled, At(1.4));
  EXPECT_THAT(state.first_failure(), Optional(0));
}

TEST(RunState, AWorkerThatWeTerminatedIsNotTheCause) {
  RunOptions options = Options(2);
  options.linger = absl::ZeroDuration();
  RunState state(options, kStart);
  state.WorkerEnded(0, kExit3, At(1));
  state.Tick(At(1));
  EXPECT_THAT(state.TakeSignals(), ElementsAre(SIGTERM));
  state.WorkerEnded(1, kTerminated, At(1.01));
  EXPECT_THAT(state.first_failure(), Optional(0));
}

TEST(RunState, ASignalIsPassedOnAndASecondOneKills) {
  RunState state(Options(2), kStart);
  state.SignalReceived(SIGINT, At(1));
  EXPECT_THAT(state.TakeSignals(), ElementsAre(SIGINT));
  EXPECT_EQ(state.NextDeadline(), At(6));
  state.SignalReceived(SIGINT, At(2));
  EXPECT_THAT(state.TakeSignals(), ElementsAre(SIGKILL));
  state.SignalReceived(SIGINT, At(2.5));
  EXPECT_THAT(state.TakeSignals(), IsEmpty());
  state.WorkerEnded(0, kKilled, At(3));
  state.WorkerEnded(1, kKilled, At(3));
  EXPECT_FALSE(state.first_failure().has_value()) << "they were asked to end";
  EXPECT_EQ(state.exit_status(), 130);
}

TEST(RunState, ASignalThatEndsNothingIsJustPassedOn) {
  RunState state(Options(1), kStart);
  state.SignalReceived(SIGUSR1, At(1));
  state.SignalReceived(SIGUSR1, At(2));
  EXPECT_THAT(state.TakeSignals(), ElementsAre(SIGUSR1, SIGUSR1));
  EXPECT_FALSE(state.ending());
}

TEST(RunState, ASignalAfterAFailureKeepsTheFailuresStatus) {
  RunState state(Options(2), kStart);
  state.WorkerEnded(0, kExit3, At(1));
  state.SignalReceived(SIGTERM, At(1.5));
  EXPECT_THAT(state.TakeSignals(), ElementsAre(SIGTERM));
  EXPECT_EQ(state.NextDeadline(), At(6.5));
  state.WorkerEnded(1, kTerminated, At(2));
  EXPECT_EQ(state.exit_status(), 3);
}

TEST(RunState, EndsAtTheTimeoutLikeTimeout1) {
  RunOptions options = Options(1);
  options.timeout = absl::Seconds(10);
  RunState state(options, kStart);
  EXPECT_EQ(state.NextDeadline(), At(10));
  state.Tick(At(10));
  EXPECT_TRUE(state.timed_out());
  EXPECT_THAT(state.TakeSignals(), ElementsAre(SIGTERM));
  state.WorkerEnded(0, kTerminated, At(11));
  EXPECT_EQ(state.exit_status(), 124);
}

TEST(RunState, TheEndOfCoorddEndsTheRun) {
  RunState state(Options(2), kStart);
  state.CoordinatorEnded(kKilled, At(1));
  EXPECT_TRUE(state.ending());
  state.Tick(At(1));
  EXPECT_TRUE(state.blame_is_final());
  EXPECT_EQ(state.NextDeadline(), At(3));
  state.WorkerEnded(0, kExit3, At(1.2));
  state.WorkerEnded(1, kExit3, At(1.2));
  EXPECT_FALSE(state.first_failure().has_value()) << "it was not their fault";
  EXPECT_EQ(state.exit_status(), 137);
}

TEST(RunState, ARunThatNeedsCoorddFailsWhenItExitsWell) {
  RunState state(Options(1), kStart);
  state.CoordinatorEnded(kGood, At(1));
  state.WorkerEnded(0, kGood, At(2));
  EXPECT_EQ(state.exit_status(), 1);
}

TEST(RunState, CountsAnEndOnce) {
  RunState state(Options(2), kStart);
  state.WorkerEnded(0, kGood, At(1));
  state.WorkerEnded(0, kExit3, At(2));
  EXPECT_FALSE(state.all_ended());
  EXPECT_FALSE(state.first_failure().has_value());
}

TEST(ProcessEnd, IsTold) {
  EXPECT_EQ(kExit3.ToString(), "exited with status 3");
  EXPECT_EQ(kKilled.ToString(), "was killed by SIGKILL");
  EXPECT_EQ(ProcessEnd({.code = 0, .signal = SIGSEGV}).shell_status(), 139);
  EXPECT_EQ(SignalName(SIGTERM), "SIGTERM");
  EXPECT_EQ(SignalName(100), "signal 100");
}

// A pod of an elastic job of all pods.
RunOptions PodOptions(int32_t np) {
  RunOptions options = Options(np);
  options.min_np = 1;
  options.pods = {.address = "coordd:29650", .min_workers = 4};
  options.drain_grace = absl::Seconds(60);
  return options;
}

TEST(RunState, OfAPodThatIsToEndIsGoodWhenItsWorkersLeave) {
  RunState state(PodOptions(2), kStart);
  state.SignalReceived(SIGTERM, At(1));
  EXPECT_THAT(state.TakeSignals(), ElementsAre(SIGTERM));
  EXPECT_EQ(state.NextDeadline(), At(61));  // not --grace: they leave at a commit
  state.WorkerEnded(0, kGood, At(3));
  EXPECT_FALSE(state.has_drained());
  state.WorkerEnded(1, kGood, At(4));
  EXPECT_TRUE(state.all_ended());
  EXPECT_TRUE(state.has_drained());
  EXPECT_EQ(state.exit_status(), 0);
}

TEST(RunState, OfAPodThatIsToEndSaysByItsStatusThatItsProgramIsNotDone) {
  RunOptions options = PodOptions(1);
  options.drained_status = 143;
  RunState drained(options, kStart);
  drained.SignalReceived(SIGTERM, At(1));
  drained.WorkerEnded(0, kGood, At(3));
  EXPECT_TRUE(drained.has_drained());
  EXPECT_EQ(drained.exit_status(), 143);
  RunState done(options, kStart);
  done.WorkerEnded(0, kGood, At(3));
  EXPECT_EQ(done.exit_status(), 0);
}

TEST(RunState, OfAPodThatIsToEndFailsWhenAWorkerDoesNotLeave) {
  RunState late(PodOptions(2), kStart);
  late.SignalReceived(SIGTERM, At(1));
  late.TakeSignals();
  late.WorkerEnded(0, kGood, At(3));
  late.Tick(At(61));
  EXPECT_THAT(late.TakeSignals(), ElementsAre(SIGKILL));
  late.WorkerEnded(1, kKilled, At(61));
  EXPECT_EQ(late.exit_status(), 128 + SIGTERM);
  RunState failed(PodOptions(1), kStart);
  failed.SignalReceived(SIGTERM, At(1));
  failed.WorkerEnded(0, kExit3, At(2));
  EXPECT_EQ(failed.exit_status(), 128 + SIGTERM);
}

TEST(RunState, OfAPodOfAJobThatIsNotElasticEndsByTheSignal) {
  RunOptions options = PodOptions(1);
  options.min_np = options.pods.min_workers = 0;
  RunState state(options, kStart);
  state.SignalReceived(SIGTERM, At(1));
  EXPECT_EQ(state.NextDeadline(), At(6));
  state.WorkerEnded(0, kGood, At(2));
  EXPECT_EQ(state.exit_status(), 128 + SIGTERM);
}

}  // namespace
}  // namespace coordd
