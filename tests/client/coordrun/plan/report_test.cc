#include "client/coordrun/plan/report.h"

#include <signal.h>

#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/coordrun/plan/coordinator_view.h"
#include "client/coordrun/process/last_words.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/start_time.h"

namespace coordd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

class RunReportTest : public ::testing::Test {
 protected:
  RunReportTest() {
    options_.np = 3;
    report_ = {.job = "train",
               .pids = {100, 101, 102},
               .hosts = {"", "", ""},
               .tails = {{}, {"assertion failed", "giving up"}, {}},
               .coordinator_view = {},
               .wall = absl::Seconds(2.5)};
  }
  void EndAll(RunState& state, ProcessEnd first, ProcessEnd second, ProcessEnd third) {
    state.WorkerEnded(1, second, kStart + absl::Seconds(1.25));
    state.WorkerEnded(0, first, kStart + absl::Seconds(2));
    state.WorkerEnded(2, third, kStart + absl::Seconds(2));
  }

  RunOptions options_;
  RunReport report_;
};

TEST_F(RunReportTest, NamesTheRankThatFailedFirstWithItsLastWords) {
  RunState state(options_, kStart);
  EndAll(state, {.code = 1, .signal = 0}, {.code = 0, .signal = SIGABRT}, {.code = 1, .signal = 0});
  report_.coordinator_view = {"rank 1 (host vm, pid 101) was lost"};
  EXPECT_EQ(EndingText(options_, state, report_),
            "rank 1 (pid 101) failed first: it was killed by SIGABRT after 1.2 s");
  EXPECT_EQ(
      SummaryText(options_, state, report_),
      "coordrun: job train, 3 workers, 2.5 s: rank 1 (pid 101) failed first: it was killed by "
      "SIGABRT after 1.2 s\n"
      "coordrun: ranks 0, 2 exited with status 1\n"
      "coordrun: coordd saw: rank 1 (host vm, pid 101) was lost\n"
      "coordrun: the last lines of rank 1 on stderr:\n"
      "  | assertion failed\n"
      "  | giving up");
}

TEST_F(RunReportTest, SaysAnExitOnce) {
  for (const std::string says : {"it exits with status 3", "ValueError: bad batch"}) {
    RunState state(options_, kStart);
    state.WorkerEnded(1, {.code = 3, .signal = 0}, kStart + absl::Seconds(1.25));
    state.FailedFirst(1, says);
    EXPECT_EQ(EndingText(options_, state, report_),
              absl::StrCat("rank 1 (pid 101) failed first: ",
                           says[0] == 'V' ? "ValueError: bad batch; " : "",
                           "it exited with status 3 after 1.2 s"));
  }
}

TEST_F(RunReportTest, NamesHorovodsFlagWhereHorovodIsNotFound) {
  const std::deque<std::string> tail = {"    import horovod.torch as hvd",
                                        "ModuleNotFoundError: No module named 'horovod'"};
  EXPECT_THAT(HintFrom(options_, tail), HasSubstr("coordrun --horovod -np 3 -- python SCRIPT"));
  report_.tails[1] = tail;
  RunState state(options_, kStart);
  EndAll(state, {.code = 1, .signal = 0}, {.code = 1, .signal = 0}, {.code = 1, .signal = 0});
  EXPECT_THAT(SummaryText(options_, state, report_),
              HasSubstr("\ncoordrun: a script that imports "));
  EXPECT_EQ(HintFrom(options_, {"ModuleNotFoundError: No module named 'numpy'"}), "");
  options_.horovod = true;
  EXPECT_EQ(HintFrom(options_, tail), "");
}

TEST_F(RunReportTest, NamesTheLegacyKerasWhereAnArgumentOfItsIsRefused) {
  const std::string wrong = "got an unexpected keyword argument 'experimental_run_tf_function'";
  const std::deque<std::string> tail = {"  File \"train.py\", line 9, in <module>",
                                        "TypeError: Trainer.compile() " + wrong};
  EXPECT_EQ(HintFrom(options_, tail), "") << "it is no script of Horovod's";
  options_.horovod = true;
  EXPECT_THAT(HintFrom(options_, tail),
              HasSubstr("with TF_USE_LEGACY_KERAS=1 (pip install tf_keras)"));
  EXPECT_THAT(HintFrom(options_, {"TypeError: TensorFlowTrainer.fit() " + wrong}), Not(IsEmpty()));
  EXPECT_EQ(HintFrom(options_, {"TypeError: Loader.compile() " + wrong}), "");
}

TEST_F(RunReportTest, KeepsTheWordsOfWhoWasLostFirstAndSaysWhatTheProgramLacks) {
  options_.min_np = 1;
  const std::deque<std::string> follower = {
      "Error: generation 1 ended: rank 1 (host vm, pid 101) failed: ValueError: bad batch"};
  report_.tails = {follower, {"ValueError: bad batch"}, follower};
  for (const bool root_is_last : {false, true}) {
    RunState state(options_, kStart);
    const std::vector<int32_t> order =
        root_is_last ? std::vector<int32_t>{0, 2, 1} : std::vector<int32_t>{1, 0, 2};
    for (const int32_t worker : order)
      state.WorkerEnded(worker, {.code = 1, .signal = 0}, kStart + absl::Seconds(1));
    EXPECT_THAT(
        SummaryText(options_, state, report_),
        AllOf(HasSubstr("the last lines of rank 1 on stderr:\n  | ValueError: bad batch\n"),
              HasSubstr("coordrun: with --min-np the others go on only if the program is ")));
  }
  options_.on_failure = "continue";
  EXPECT_EQ(HintFrom(options_, follower), "");
}

TEST(LastWords, AreCleanAndShort) {
  EXPECT_EQ(CleanLine("a\tb\x07"), "a b");
  EXPECT_EQ(CleanLine("\x1b[1;31mred\x1b[0m \x1b]text"), "red text");
  EXPECT_EQ(CleanLine("50%\r100%\r"), "100%");
  EXPECT_EQ(CleanLine("\x1b["), "");
  EXPECT_EQ(CleanLine("caf\xc3\xa9 \xff"), "caf?? ?");  // no UTF-8: what is not ASCII goes
  EXPECT_EQ(CleanLine(std::string(300, 'x')), std::string(200, 'x') + "...");
  EXPECT_THAT(LastWords({"1", "2", "", "3", "  ", "4"}), ElementsAre("2", "3", "4"));
  EXPECT_THAT(LastWords({}), ::testing::IsEmpty());
}

TEST(LastWords, GoWithTheEnd) {
  const v1::ProcessExit killed = ToProto({.code = 0, .signal = SIGSEGV}, {"bad pointer"}, "");
  EXPECT_EQ(killed.signal(), SIGSEGV);
  EXPECT_THAT(killed.last_words(), ElementsAre("bad pointer"));
  const v1::ProcessExit lost = ToProto({.code = 255, .signal = 0, .lost = true}, {}, "its host");
  EXPECT_TRUE(lost.unreachable());
  EXPECT_EQ(lost.code(), 0);  // that of ssh
  EXPECT_EQ(lost.reason(), "its host");
}

TEST_F(RunReportTest, IsOneLineWhenAllIsWell) {
  RunState state(options_, kStart);
  EndAll(state, {}, {}, {});
  EXPECT_EQ(SummaryText(options_, state, report_),
            "coordrun: job train, 3 workers, 2.5 s: all workers exited with status 0");
}

// Two processes that train alone, each the whole model.
TEST_F(RunReportTest, SaysWhenNobodyHasJoined) {
  RunState state(options_, kStart);
  EndAll(state, {}, {}, {});
  report_.nobody_joined = true;
  EXPECT_EQ(SummaryText(options_, state, report_),
            "coordrun: job train, 3 workers, 2.5 s, none of which has joined the job (no call of "
            "init()): all workers exited with status 0");
}

TEST_F(RunReportTest, CountsWhoWasAskedToLeave) {
  options_.min_np = 1;
  RunState all(options_, kStart);
  for (int32_t worker = 0; worker < 3; ++worker)
    all.DrainedWorkerEnded(worker, {}, kStart + absl::Seconds(1));
  EXPECT_EQ(EndingText(options_, all, report_), "no worker is left: 3 were asked to leave");
  options_.np = 1;
  RunState one(options_, kStart);
  one.DrainedWorkerEnded(0, {}, kStart + absl::Seconds(1));
  EXPECT_EQ(EndingText(options_, one, report_), "no worker is left: 1 was asked to leave");
}

TEST_F(RunReportTest, SaysOfOneWhatIsOfOne) {
  options_.np = 1;
  report_.pids = {100};
  report_.nobody_joined = true;
  RunState state(options_, kStart);
  state.WorkerEnded(0, {}, kStart + absl::Seconds(1));
  EXPECT_THAT(SummaryText(options_, state, report_),
              HasSubstr("1 worker, 2.5 s, which has not joined the job (no call of init())"));
}

TEST_F(RunReportTest, SendsToTheWordsOfWhoWasRefused) {
  options_.np = 1;
  report_.pids = {100};
  report_.nobody_joined = true;
  report_.tails.resize(1);
  report_.tails[0] = {"coordd-worker: another run at this coordd is called job run7"};
  RunState state(options_, kStart);
  state.WorkerEnded(0, {.code = 3}, kStart + absl::Seconds(1));
  const std::string text = SummaryText(options_, state, report_);
  EXPECT_THAT(text, HasSubstr("which has not joined the job (init() was refused or not reached: "
                              "the last lines below tell why)"));
  EXPECT_THAT(text, HasSubstr("  | coordd-worker: another run at this coordd"));
}

TEST_F(RunReportTest, SaysWhyCoorddRefusedARank) {
  report_.tails = {{"Traceback", "coordd.Error: coordd refused this worker: the job is full"},
                   {"\x1b[31mcoordd.Error: coordd refused this worker: wrong token\x1b[0m", "bye"},
                   {"coordd.Error: coordd refused this worker: the job is full"}};
  report_.hosts = {"a", "b", "c"};
  report_.nobody_joined = true;
  RunState state(options_, kStart);
  EndAll(state, {.code = 1}, {.code = 3}, {.code = 1});
  const std::string text = SummaryText(options_, state, report_);
  EXPECT_THAT(text, HasSubstr("none of which has joined the job: rank 1 (host b, pid 101) failed "
                              "first: coordd refused it: wrong token; it exited with status 3"));
  EXPECT_THAT(text, HasSubstr("\ncoordrun: ranks 0, 2 exited with status 1, refused by coordd: the "
                              "job is full\n"));
  EXPECT_THAT(SummaryJson(options_, state, report_), HasSubstr("coordd refused it: wrong token"));
}

TEST_F(RunReportTest, SaysWhyCoorddRefusedARankWithoutWhichTheRunGoesOn) {
  options_.min_np = 2;
  RunState state(options_, kStart);
  state.WorkerEnded(1, {.code = 3}, kStart + absl::Seconds(1));
  const std::deque<std::string> tail = {"x: coordd refused this worker: it is too old", "bye"};
  EXPECT_THAT(LossText(options_, state, report_, 1, tail),
              HasSubstr("exited with status 3 after 1.0 s (coordd refused it: it is too old); 2 "));
}

TEST_F(RunReportTest, SaysWithHowManyAnElasticRunBegins) {
  RunPlan plan;
  plan.np = options_.np = 4;
  EXPECT_EQ(BeginningText(options_, plan), "");
  options_.min_np = 4;
  EXPECT_EQ(BeginningText(options_, plan), "");
  options_.min_np = 2;
  EXPECT_EQ(BeginningText(options_, plan),
            "starts 4 workers; the job begins with all that come in time, 2 at least "
            "(--min-np), and others join at a later commit");
  options_.discovery_script = "hosts";
  options_.max_np = 4;
  plan.np = options_.np = 2;
  EXPECT_EQ(BeginningText(options_, plan),
            "starts 2 workers, for which there are slots; the job begins with all of them "
            "(--min-np), and workers on slots that come later join at a commit, up to --max-np 4");
}

TEST_F(RunReportTest, SaysWhatItsNumbersAreWhereMembersHaveChanged) {
  options_.min_np = 2;
  RunState state(options_, kStart);
  EXPECT_THAT(SummaryText(options_, state, report_), Not(HasSubstr("[n]")));
  state.WorkerEnded(1, {.code = 3}, kStart + absl::Seconds(1));
  EXPECT_THAT(SummaryText(options_, state, report_),
              HasSubstr("\ncoordrun: [n] and rank n here are the number with which coordrun "
                        "started a worker (COORDD_RANK)"));
}

TEST_F(RunReportTest, RemembersALossThatWasRepaired) {
  options_.min_np = 2;
  options_.max_restarts = 2;
  RunState state(options_, kStart);
  for (int again = 0; again < 2; ++again) {
    state.WorkerEnded(1, {.code = 0, .signal = SIGKILL}, kStart + absl::Minutes(again));
    EXPECT_THAT(state.TakeRestarts(kStart + absl::Minutes(again) + absl::Seconds(30)),
                ElementsAre(1));
    state.WorkerRestarted(1, kStart + absl::Minutes(again) + absl::Seconds(30));
    if (again > 0) continue;
    EXPECT_EQ(state.repaired(), 1);
  }
  EndAll(state, {}, {}, {});
  EXPECT_THAT(
      SummaryText(options_, state, report_),
      HasSubstr("all workers exited with status 0; 2 times one was lost and started again"));
}

TEST_F(RunReportTest, SaysWhatAJobWithTooFewWorkersWaitsFor) {
  options_.min_np = 3;
  options_.discovery_script = "hosts";
  RunState state(options_, kStart);
  EXPECT_EQ(WaitingText(options_, state), "");
  state.WorkerEnded(1, {.code = 0, .signal = SIGKILL}, kStart);
  EXPECT_EQ(WaitingText(options_, state),
            "2 workers are left, --min-np 3: waiting up to 600 s for another");
  state.WorkerEnded(2, {.code = 0, .signal = SIGKILL}, kStart);
  EXPECT_EQ(WaitingText(options_, state),
            "1 worker is left, --min-np 3: waiting up to 600 s for 2 others");
  state.WorkerEnded(0, {}, kStart);
  EXPECT_EQ(WaitingText(options_, state), "");
}

TEST_F(RunReportTest, CountsRanksFromTheFirstOneHere) {
  options_.size = 6;
  options_.first_rank = 3;
  RunState state(options_, kStart);
  EndAll(state, {}, {.code = 2, .signal = 0}, {});
  EXPECT_THAT(EndingText(options_, state, report_), HasSubstr("rank 4 (pid 101)"));
}

TEST_F(RunReportTest, SaysThatASignalOrTheTimeoutEndedIt) {
  RunState interrupted(options_, kStart);
  interrupted.SignalReceived(SIGTERM, kStart);
  EXPECT_THAT(EndingText(options_, interrupted, report_), HasSubstr("SIGTERM"));
  options_.timeout = absl::Seconds(10);
  RunState late(options_, kStart);
  late.Tick(kStart + absl::Seconds(10));
  EXPECT_THAT(EndingText(options_, late, report_), HasSubstr("--timeout 10 s"));
  RunState alone(options_, kStart);
  alone.CoordinatorEnded({.code = 0, .signal = SIGKILL}, kStart);
  EXPECT_THAT(EndingText(options_, alone, report_), HasSubstr("coordd was killed by SIGKILL"));
}

TEST_F(RunReportTest, JsonTellsEachRanksEnd) {
  RunState state(options_, kStart);
  EndAll(state, {.code = 0, .signal = SIGTERM}, {.code = 7, .signal = 0}, {});
  const auto json = nlohmann::json::parse(SummaryJson(options_, state, report_));
  EXPECT_EQ(json["job"], "train");
  EXPECT_EQ(json["exit_status"], 7);
  EXPECT_EQ(json["first_failure"], 1);
  EXPECT_EQ(json["ranks"][0]["signal"], "SIGTERM");
  EXPECT_TRUE(json["ranks"][0]["exit_code"].is_null());
  EXPECT_EQ(json["ranks"][1]["exit_code"], 7);
  EXPECT_EQ(json["ranks"][2]["pid"], 102);
}

TEST_F(RunReportTest, AnElasticRunSaysWhoWasLostAndDoesNotWaitForLatecomers) {
  options_.min_np = 1;
  options_.max_restarts = 1;
  RunState run(options_, kStart);
  run.WorkerEnded(1, {.code = 0, .signal = SIGKILL}, kStart + absl::Seconds(2));
  EXPECT_EQ(LossText(options_, run, report_, 1, {}),
            "rank 1 (pid 101) was killed by SIGKILL after 2.0 s; 2 workers go on");
  EXPECT_EQ(LossText(options_, run, report_, 1, {"loading", "\x1b[31mout of memory\x1b[0m", " "}),
            "rank 1 (pid 101) was killed by SIGKILL after 2.0 s (last on stderr: out of memory); 2 "
            "workers go on");
  for (int32_t worker : run.TakeRestarts(kStart + absl::Seconds(3)))
    run.WorkerRestarted(worker, kStart + absl::Seconds(3));
  run.WorkerEnded(0, {}, kStart + absl::Seconds(4));
  report_.job = "train";
  v1::ServerState state;
  v1::JobState* job = state.add_jobs();
  job->set_name("train");
  job->set_phase(v1::JOB_PHASE_GATHERING);
  job->add_workers()->set_pid(101);
  EXPECT_FALSE(OnlyLatecomersAreLeft(state, run, report_)) << "rank 2 is alive";
  run.WorkerEnded(2, {}, kStart + absl::Seconds(5));
  EXPECT_TRUE(OnlyLatecomersAreLeft(state, run, report_));
  job->set_phase(v1::JOB_PHASE_RUNNING);
  EXPECT_FALSE(OnlyLatecomersAreLeft(state, run, report_)) << "it is in a generation";
  run.Finish(kStart + absl::Seconds(6));
  EXPECT_THAT(run.TakeSignals(), testing::ElementsAre(SIGTERM));
  run.WorkerEnded(1, {.code = 0, .signal = SIGTERM}, kStart + absl::Seconds(6));
  EXPECT_EQ(run.exit_status(), 0);
  EXPECT_THAT(SummaryText(options_, run, report_),
              HasSubstr("1 was lost, the others exited with status 0"));
  EXPECT_EQ(nlohmann::json::parse(SummaryJson(options_, run, report_))["lost"][0], 1);
}

TEST_F(RunReportTest, TellsAnEndWithoutAGoodbyeAndOneBeforeJoining) {
  RunState run(options_, kStart);
  run.WorkerEnded(1, {}, kStart);
  report_.job = "train";
  v1::ServerState state;
  EXPECT_TRUE(NobodyHasCome(state, report_));
  v1::JobState* job = state.add_jobs();
  job->set_name("train");
  job->set_phase(v1::JOB_PHASE_GATHERING);
  EXPECT_FALSE(FindEarlyExit(state, run, report_)) << "nobody uses coordd";
  EXPECT_TRUE(NobodyHasCome(state, report_));
  job->set_joined(2);
  job->add_workers()->set_pid(100);
  EXPECT_FALSE(NobodyHasCome(state, report_));
  const auto early = FindEarlyExit(state, run, report_);
  ASSERT_TRUE(early);
  EXPECT_EQ(early->worker, 1);
  run.Blame(early->worker, early->completes, kStart);
  EXPECT_EQ(run.exit_status(), 1);
  EXPECT_EQ(
      EndingText(options_, run, report_),
      "rank 1 (pid 101) exited with status 0 before it joined the job, for which 2 others wait");
  v1::Departure* lost = job->add_departures();
  lost->set_pid(101);
  lost->set_cause(v1::DEPARTURE_CAUSE_CONNECTION_LOST);
  EXPECT_FALSE(FindEarlyExit(state, run, report_)) << "it had joined";
  job->clear_workers();
  EXPECT_FALSE(NobodyHasCome(state, report_));
  ExplainLostExits(state, options_, run, &report_);
  ASSERT_THAT(report_.coordinator_view, SizeIs(1));
  EXPECT_THAT(report_.coordinator_view[0], HasSubstr("exited with status 0 without a goodbye"));
}

TEST(DescribeView, TakesDeparturesAndStallsOfTheJob) {
  v1::ServerState state;
  v1::JobState* job = state.add_jobs();
  job->set_name("train");
  job->set_size(4);
  v1::Departure* goodbye = job->add_departures();
  goodbye->set_rank(3);
  goodbye->set_cause(v1::DEPARTURE_CAUSE_LEFT);
  v1::Departure* departure = job->add_departures();
  departure->set_cause(v1::DEPARTURE_CAUSE_CONNECTION_LOST);
  departure->set_rank(2);
  departure->set_hostname("vm");
  departure->set_pid(5);
  departure->set_detail("was lost: its connection closed without a goodbye");
  v1::StalledTensor* stall = job->add_stalled();
  stall->set_name("grad");
  stall->set_waiting_seconds(12);
  stall->add_ready_ranks(0);
  stall->set_ready_count(1);
  stall->add_missing_ranks(1);
  stall->set_missing_count(3);
  EXPECT_THAT(
      DescribeView(state, "train"),
      ElementsAre("rank 2 (host vm, pid 5) was lost: its connection closed without a goodbye",
                  "stalled for 12 s: grad; ranks in: 0; ranks missing: 1 and 2 more"));
  EXPECT_THAT(DescribeView(state, "other"), SizeIs(0));
  for (int i = 0; i < 100; ++i) *job->add_departures() = *departure;
  EXPECT_THAT(DescribeView(state, "train"), SizeIs(9)) << "a screen, no more";
}

TEST(NoneFollows, IsOfTheRunBeforeUntilSomebodyOfThisOneHasCome) {
  v1::ServerState state;
  v1::JobState& job = *state.add_jobs();
  job.set_name("train");
  job.set_none_follows("--reset-limit 1 is reached");
  job.add_departures()->set_launch("before-1");
  EXPECT_EQ(NoneFollows(state, "train", {"now-0", "now-1", ""}), "");
  job.add_departures()->set_launch("now-1");
  EXPECT_EQ(NoneFollows(state, "train", {"now-0", "now-1", ""}), "--reset-limit 1 is reached");
  job.mutable_departures()->RemoveLast();
  job.add_workers()->set_launch("now-0");
  EXPECT_EQ(NoneFollows(state, "train", {"now-0", "now-1", ""}), "--reset-limit 1 is reached");
  EXPECT_EQ(NoneFollows(state, "other", {"now-0"}), "");
}

// Of a large job those who have left last, who may all be of other machines.
TEST(NoneFollows, IsBelievedWhereNotAllDeparturesAreShown) {
  v1::ServerState state;
  v1::JobState& job = *state.add_jobs();
  job.set_name("train");
  job.set_none_follows("--reset-limit 1 is reached");
  for (int i = 0; i < 64; ++i) job.add_departures()->set_launch("elsewhere");
  EXPECT_EQ(NoneFollows(state, "train", {"now-0"}), "--reset-limit 1 is reached");
}

}  // namespace
}  // namespace coordd
