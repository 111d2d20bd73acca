#include "client/coordrun/plan/worker_environment.h"

#include "client/coordrun/coordinator/coordinator_process.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

RunOptions RunOf(int32_t np) {
  RunOptions options;
  options.np = np;
  options.metrics = "127.0.0.1:0";
  options.command = {"train"};
  return options;
}

const Rendezvous kRendezvous = {
    .address = "127.0.0.1:7400",
    .job = "train",
    .token_file = "/run/token",
    .tls = {.cert = "/run/worker.crt", .key = "/run/worker.key", .ca = "/run/ca.crt"}};

TEST(EnvironmentOfWorker, TellsEachWorkerItsPlaceAndTheWay) {
  const auto environment = EnvironmentOfWorker(RunOf(4), kRendezvous, 2, {{"HOME", "/h"}});
  ASSERT_TRUE(environment.ok());
  const Environment expected = {
      {"HOME", "/h"},
      {"COORDD_ADDR", "127.0.0.1:7400"},
      {"COORDD_JOB_ID", "train"},
      {"COORDD_TOKEN_FILE", "/run/token"},
      {"COORDD_TLS_CA", "/run/ca.crt"},
      {"COORDD_TLS_CERT", "/run/worker.crt"},
      {"COORDD_TLS_KEY", "/run/worker.key"},
      {"COORDD_RANK", "2"},
      {"COORDD_SIZE", "4"},
      {"COORDD_LOCAL_RANK", "2"},
      {"COORDD_LOCAL_SIZE", "4"},
      {"COORDD_METRICS", "127.0.0.1:0"},
      {"RANK", "2"},
      {"WORLD_SIZE", "4"},
      {"LOCAL_RANK", "2"},
      {"LOCAL_WORLD_SIZE", "4"},
      {"GROUP_RANK", "0"},
      {"COORDD_TORCH_ENV", "RANK,WORLD_SIZE,LOCAL_RANK,LOCAL_WORLD_SIZE,GROUP_RANK"}};
  EXPECT_EQ(*environment, expected);
}

TEST(EnvironmentOfWorker, CountsOnFromTheFirstRankInALargerJob) {
  RunOptions options = RunOf(2);
  options.size = 6;
  options.first_rank = 4;
  const auto environment = EnvironmentOfWorker(options, kRendezvous, 1, {});
  ASSERT_TRUE(environment.ok());
  EXPECT_THAT(*environment, Contains(Pair("COORDD_RANK", "5")));
  EXPECT_THAT(*environment, Contains(Pair("COORDD_SIZE", "6")));
  EXPECT_THAT(*environment, Contains(Pair("COORDD_LOCAL_RANK", "1")));
  EXPECT_THAT(*environment, Contains(Pair("COORDD_LOCAL_SIZE", "2")));
}

TEST(EnvironmentOfWorker, LeavesNothingBehindOfAnOuterRun) {
  RunOptions options = RunOf(1);
  options.metrics = "off";
  const Environment outer = {{"COORDD_TLS_CA", "outer"},
                             {"COORDD_TOKEN_FILE", "outer"},
                             {"COORDD_RANK", "9"},
                             {"COORDD_METRICS", "0.0.0.0:1"},
                             {"COORDD_TRANSPORT", "shm"}};
  const auto environment = EnvironmentOfWorker(
      options, {.address = "h:1", .job = "j", .token_file = "", .tls = {}}, 0, outer);
  ASSERT_TRUE(environment.ok());
  EXPECT_THAT(*environment, Not(Contains(Key("COORDD_TLS_CA"))));
  EXPECT_THAT(*environment, Not(Contains(Key("COORDD_TOKEN_FILE"))));
  EXPECT_THAT(*environment, Not(Contains(Key("COORDD_METRICS"))));
  EXPECT_THAT(*environment, Contains(Pair("COORDD_RANK", "0")));
  EXPECT_THAT(*environment, Contains(Pair("COORDD_TRANSPORT", "shm")));
}

TEST(EnvironmentOfWorker, VariablesOfTheCommandLineWin) {
  RunOptions options = RunOf(1);
  ASSERT_TRUE(ParseVariable("COORDD_METRICS=0.0.0.0:9401", &options).ok());
  ASSERT_TRUE(ParseVariable("EMPTY=", &options).ok());
  ASSERT_TRUE(ParseVariable("HOME", &options).ok());
  const auto environment = EnvironmentOfWorker(options, kRendezvous, 0, {{"HOME", "/h"}});
  ASSERT_TRUE(environment.ok());
  EXPECT_THAT(*environment, Contains(Pair("COORDD_METRICS", "0.0.0.0:9401")));
  EXPECT_THAT(*environment, Contains(Pair("EMPTY", "")));
  EXPECT_THAT(*environment, Contains(Pair("HOME", "/h")));
}

TEST(EnvironmentOfWorker, NamesAVariableThatIsNotSet) {
  RunOptions options = RunOf(1);
  ASSERT_TRUE(ParseVariable("MISSING", &options).ok());
  EXPECT_THAT(EnvironmentOfWorker(options, kRendezvous, 0, {}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("-x MISSING")));
  EXPECT_THAT(ParseVariable("=x", &options),
              StatusIs(absl::StatusCode::kInvalidArgument, ::testing::_));
}

TEST(RunOptions, AreRefusedInOneSentenceThatNamesTheOption) {
  const auto expect = [](RunOptions options, const std::string& text) {
    EXPECT_THAT(options.Validate(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
  };
  EXPECT_TRUE(RunOf(4).Validate().ok());
  expect(RunOf(0), "-np is 0");
  RunOptions options = RunOf(2);
  options.command.clear();
  expect(options, "no command");
  options = RunOf(2);
  options.first_rank = 1;
  expect(options, "--first-rank 1");
  options = RunOf(2);
  options.launcher = "jsrun";
  expect(options, "--launcher is jsrun");
  options = RunOf(2);
  options.port_range = "9-3";
  expect(options, "--port-range is 9-3");
  options = RunOf(2);
  options.coordinator = "nonsense";
  expect(options, "--coordinator");
  options.coordinator = "127.0.0.1:0";
  expect(options, "nobody listens on port 0");
  options = RunOf(2);
  options.http = "nonsense";
  expect(options, "--http");
  options = RunOf(2);
  options.size = 4;
  expect(options, "--size 4");
  options = RunOf(2);
  options.listen = "0.0.0.0:7400";
  options.tls = false;
  expect(options, "--no-tls");
  options = RunOf(2);
  options.coordinator = "127.0.0.1:1";
  options.keep = true;
  expect(options, "--keep");
}

TEST(TransferredEnvironment, LeavesWhatDescribesThisMachineAndThisLogin) {
  EXPECT_EQ(TransferredEnvironment({{"PATH", "/p"},
                                    {"HOME", "/h"},
                                    {"SSH_CONNECTION", "1"},
                                    {"SLURM_PROCID", "0"},
                                    {"PYTHONPATH", "x"}}),
            (Environment{{"PATH", "/p"}, {"PYTHONPATH", "x"}}));
}

TEST(JobNameFrom, IsTheProgramsNameAsAJobMayBeNamed) {
  EXPECT_EQ(JobNameFrom("/usr/bin/train.py"), "train.py");
  EXPECT_EQ(JobNameFrom("my job!"), "my-job-");
  EXPECT_EQ(JobNameFrom("dir/"), "job");
  EXPECT_EQ(JobNameFrom(std::string(200, 'a')).size(), 128u);
}

TEST(JobNameFrom, NamesInOtherAlphabetsDiffer) {
  const std::string test = JobNameFrom("/a/\xd1\x82\xd0\xb5\xd1\x81\xd1\x82");
  EXPECT_THAT(test, ::testing::MatchesRegex("--------[0-9a-f]{8}"));
  EXPECT_EQ(JobNameFrom("/b/\xd1\x82\xd0\xb5\xd1\x81\xd1\x82"), test);
  EXPECT_NE(JobNameFrom("/a/\xd1\x82\xd0\xb5\xd0\xbc\xd0\xb0"), test);
}

TEST(CoordinatorCommand, WhatTheUserSaysWins) {
  RunOptions options = RunOf(1);
  options.http = "off";
  options.insecure_http = true;
  options.coordd_arguments = {"--log-level=info", "--store", "memory"};
  EXPECT_THAT(CoordinatorCommand(
                  "coordd", options,
                  {.listen = "127.0.0.1:0", .http = "off", .store = "sqlite:d", .tls = {}}, 7),
              ElementsAre("coordd", "--listen", "127.0.0.1:0", "--http", "off", "--ready-fd", "7",
                          "--insecure-http", "--log-level=info", "--store", "memory"));
}

TEST(CoordinatorCommand, NamesEveryAddressAndFile) {
  RunOptions options = RunOf(1);
  options.http = "off";
  options.coordd_arguments = {"--stall-abort", "60"};
  EXPECT_THAT(CoordinatorCommand("coordd", options,
                                 {.listen = "127.0.0.1:0",
                                  .http = "off",
                                  .store = "sqlite:d",
                                  .tls = {.cert = "c", .key = "k", .ca = "a"}},
                                 7),
              ElementsAre("coordd", "--listen", "127.0.0.1:0", "--http", "off", "--ready-fd", "7",
                          "--log-level", "warning", "--store", "sqlite:d", "--tls-cert", "c",
                          "--tls-key", "k", "--tls-ca", "a", "--stall-abort", "60"));
}

TEST(ParseReadyLine, TakesCoorddsAddresses) {
  const auto addresses = ParseReadyLine(R"({"listen":"127.0.0.1:5","http":"","pid":3})"
                                        "\n");
  ASSERT_TRUE(addresses.ok());
  EXPECT_EQ(addresses->listen, "127.0.0.1:5");
  EXPECT_EQ(addresses->http, "");
  for (const char* bad : {"", "x", "{}", R"({"listen":5})", "[1]"}) {
    EXPECT_THAT(ParseReadyLine(bad), StatusIs(absl::StatusCode::kInvalidArgument, ::testing::_))
        << bad;
  }
}

}  // namespace
}  // namespace coordd
