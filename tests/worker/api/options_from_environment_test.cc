#include "worker/api/options_from_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/status_matchers.h"
#include "tests/support/temp_directory.h"

namespace coordd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Task 5 of 8, the second on the second of two nodes.
Environment SlurmTask() {
  return {{"SLURM_JOB_ID", "4711"},      {"SLURM_STEP_ID", "2"},
          {"SLURM_PROCID", "5"},         {"SLURM_LOCALID", "1"},
          {"SLURM_NODEID", "1"},         {"SLURM_STEP_NUM_TASKS", "8"},
          {"SLURM_STEP_NUM_NODES", "2"}, {"SLURM_STEP_TASKS_PER_NODE", "4(x2)"}};
}

TEST(OptionsFromEnvironment, QuoteNothingThatSteersATerminal) {
  for (const char* variable : {"COORDD_ADDR", "COORDD_RANK", "COORDD_TIMEOUT", "COORDD_TRANSPORT",
                               "COORDD_LAUNCHER", "COORDD_METRICS", "COORDD_TOKEN_FILE"}) {
    const auto options = WorkerOptionsFrom({{variable, "x\ny\x1b[2J\u202e"}});
    ASSERT_FALSE(options.ok()) << variable;
    EXPECT_THAT(std::string(options.status().message()), HasSubstr("x\\x0ay\\x1b[2J\\u202e"));
  }
}

TEST(OptionsFromEnvironment, TakeDefaultsFromAnEmptyEnvironment) {
  const auto options = WorkerOptionsFrom({});
  ASSERT_THAT(options, IsOk());
  EXPECT_EQ(options->job, "default");
  EXPECT_EQ(options->launcher_rank, -1);
  EXPECT_EQ(options->min_workers, 0);
  EXPECT_EQ(options->collective_timeout, absl::Minutes(10));
  EXPECT_FALSE(options->metrics.has_value());
  EXPECT_TRUE(options->auto_coordinator);
}

TEST(OptionsFromEnvironment, SayWhetherCommunicatorsOnGpusAreShrunk) {
  EXPECT_TRUE(WorkerOptionsFrom({})->shrink_gpu_communicators);
  EXPECT_EQ(WorkerOptionsFrom({{"COORDD_GPU_GATE_LIMIT", "2.5"}})->gpu_gate_limit,
            absl::Seconds(2.5));
  EXPECT_FALSE(WorkerOptionsFrom({{"COORDD_GPU_SHRINK", "0"}})->shrink_gpu_communicators);
  EXPECT_FALSE(WorkerOptionsFrom({{"COORDD_GPU_DIRECT", "0"}})->direct_gpu_communicators);
  EXPECT_TRUE(WorkerOptionsFrom({})->direct_gpu_communicators);
  EXPECT_THAT(WorkerOptionsFrom({{"COORDD_GPU_SHRINK", "never"}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("0 or 1")));
}

TEST(OptionsFromEnvironment, SayHowCommunicatorsOfNcclAreConfigured) {
  const auto options = WorkerOptionsFrom({{"COORDD_NCCL_CONFIG", "maxCTAs=16"}});
  ASSERT_THAT(options, IsOk());
  EXPECT_EQ(options->nccl_environment.at("COORDD_NCCL_CONFIG"), "maxCTAs=16");
  EXPECT_THAT(
      WorkerOptionsFrom({{"COORDD_NCCL_CONFIG", "maxCTAs=many"}}),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("COORDD_NCCL_CONFIG: \"maxCTAs=many\", expected a number of 1 to 64")));
}

TEST(OptionsFromEnvironment, SayWhatNcclIsToldOfFusionBuffers) {
  EXPECT_TRUE(WorkerOptionsFrom({})->register_gpu_buffers);
  EXPECT_FALSE(WorkerOptionsFrom({})->symmetric_gpu_windows);
  EXPECT_FALSE(WorkerOptionsFrom({{"COORDD_GPU_REGISTER", "0"}})->register_gpu_buffers);
  const auto symmetric = WorkerOptionsFrom({{"COORDD_GPU_REGISTER", "symmetric"}});
  ASSERT_THAT(symmetric, IsOk());
  EXPECT_TRUE(symmetric->register_gpu_buffers);
  EXPECT_TRUE(symmetric->symmetric_gpu_windows);
  EXPECT_THAT(WorkerOptionsFrom({{"COORDD_GPU_REGISTER", "windows"}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("0, 1 or symmetric")));
}

TEST(OptionsFromEnvironment, TheTopologyIsDdlrunsUnlessItIsSaid) {
  Environment environment = {
      {"OMPI_COMM_WORLD_RANK", "1"},       {"OMPI_COMM_WORLD_SIZE", "2"},
      {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
      {"DDL_OPTIONS", "-mode p:1x1x2x1 "}, {"DDL_HOST_LIST", "h1:0;h2:1"}};
  EXPECT_EQ(WorkerOptionsFrom(environment)->topology, std::vector<std::string>{"rack2"});
  environment["COORDD_TOPOLOGY"] = "row7/rack1";
  EXPECT_EQ(WorkerOptionsFrom(environment)->topology, (std::vector<std::string>{"row7", "rack1"}));
}

TEST(OptionsFromEnvironment, ReadEveryVariable) {
  const auto options = WorkerOptionsFrom({{"COORDD_ADDR", "[::1]:29650"},
                                          {"COORDD_JOB_ID", "bert"},
                                          {"COORDD_LAUNCH_ID", "c2f0.3.1"},
                                          {"COORDD_RANK", "3"},
                                          {"COORDD_SIZE", "8"},
                                          {"COORDD_LOCAL_RANK", "1"},
                                          {"COORDD_MIN_WORKERS", "4"},
                                          {"COORDD_SETTLING_WINDOW", "2.5"},
                                          {"COORDD_NODE_ID", "n1"},
                                          {"COORDD_TOPOLOGY", "aisle3/rack12"},
                                          {"COORDD_METRICS", "0.0.0.0:0"},
                                          {"COORDD_TRANSPORT", "ucx"},
                                          {"COORDD_HOST_ALGORITHM", "flat"},
                                          {"COORDD_GPU_ALGORITHM", "hierarchical"},
                                          {"COORDD_CHECK_RESULTS", "1e-6"},
                                          {"COORDD_LOG_LEVEL", "warning"},
                                          {"COORDD_JOIN_TIMEOUT", "1.5"},
                                          {"COORDD_TIMEOUT", "30"}});
  ASSERT_THAT(options, IsOk());
  EXPECT_EQ(options->coordinator, (HostPort{"::1", 29650}));
  EXPECT_EQ(options->job, "bert");
  EXPECT_EQ(options->launch_id, "c2f0.3.1");
  EXPECT_EQ(options->device_rules.algorithm, GpuAlgorithm::kHierarchical);
  EXPECT_EQ(options->host_algorithm, HostAlgorithm::kFlat);
  EXPECT_EQ(options->launcher_rank, 3);
  EXPECT_EQ(options->launcher_local_rank, 1);
  EXPECT_EQ(options->min_workers, 4);
  EXPECT_EQ(options->max_workers, 8);
  EXPECT_EQ(options->settling_window, absl::Seconds(2.5));
  EXPECT_EQ(options->node_id, "n1");
  EXPECT_THAT(options->topology, ElementsAre("aisle3", "rack12"));
  EXPECT_EQ(options->metrics, (HostPort{"0.0.0.0", 0}));
  EXPECT_EQ(options->transport, TransportChoice::kUcx);
  EXPECT_EQ(options->check_results, 1e-6);
  EXPECT_EQ(options->log_level, LogLevel::kWarning);
  EXPECT_EQ(options->join_timeout, absl::Seconds(1.5));
  EXPECT_EQ(options->collective_timeout, absl::Seconds(30));
  EXPECT_THAT(options->Validate(), IsOk());
}

TEST(OptionsFromEnvironment, TakeEveryTransport) {
  for (const auto& [text, choice] :
       {std::pair{"auto", TransportChoice::kAuto}, std::pair{"mapped", TransportChoice::kMapped},
        std::pair{"shm", TransportChoice::kShm}, std::pair{"tcp", TransportChoice::kTcp},
        std::pair{"ucx", TransportChoice::kUcx}}) {
    const auto options = WorkerOptionsFrom({{"COORDD_TRANSPORT", text}});
    ASSERT_TRUE(options.ok()) << options.status();
    EXPECT_EQ(options->transport, choice);
  }
}

TEST(OptionsFromEnvironment, EncryptDataWhereItIsAskedFor) {
  EXPECT_FALSE(WorkerOptionsFrom({})->encrypt_data);
  EXPECT_FALSE(WorkerOptionsFrom({{"COORDD_DATA_ENCRYPTION", "off"}})->encrypt_data);
  EXPECT_TRUE(WorkerOptionsFrom({{"COORDD_DATA_ENCRYPTION", "on"}})->encrypt_data);
  EXPECT_THAT(WorkerOptionsFrom({{"COORDD_DATA_ENCRYPTION", "yes"}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("expected on or off")));
}

TEST(OptionsFromEnvironment, HaveAsManyConnectionsAsAreAskedFor) {
  EXPECT_EQ(WorkerOptionsFrom({})->tcp_connections, 1);
  EXPECT_EQ(WorkerOptionsFrom({{"COORDD_TCP_CONNECTIONS", "1"}})->tcp_connections, 1);
  EXPECT_EQ(WorkerOptionsFrom({{"COORDD_TCP_CONNECTIONS", "16"}})->tcp_connections, 16);
  for (const char* wrong : {"0", "17", "-1", "two", "4x"})
    EXPECT_THAT(WorkerOptionsFrom({{"COORDD_TCP_CONNECTIONS", wrong}}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("expected a whole number from 1 to 16")));
}

TEST(OptionsFromEnvironment, ReadTheTokenWithoutTheEndOfItsLine) {
  TempDirectory directory;
  const std::string path = directory.path() + "/token";
  std::ofstream(path) << "secret\n";
  ASSERT_EQ(chmod(path.c_str(), 0640), 0);
  EXPECT_THAT(WorkerOptionsFrom({{"COORDD_TOKEN_FILE", path}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("chmod 600 " + path)));
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  const auto options = WorkerOptionsFrom({{"COORDD_TOKEN_FILE", path}});
  ASSERT_THAT(options, IsOk());
  EXPECT_EQ(options->token, "secret");
  EXPECT_THAT(WorkerOptionsFrom({{"COORDD_TOKEN_FILE", path + ".missing"}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("COORDD_TOKEN_FILE")));
}

TEST(OptionsFromEnvironment, NameTheVariableThatIsWrong) {
  for (const auto& [name, value] :
       std::vector<std::pair<std::string, std::string>>{{"COORDD_ADDR", "nowhere"},
                                                        {"COORDD_LAUNCHER", "slumr"},
                                                        {"COORDD_PORT_RANGE", "9-5"},
                                                        {"COORDD_RANK", "-1"},
                                                        {"COORDD_RANK", "two"},
                                                        {"COORDD_SIZE", "0"},
                                                        {"COORDD_SETTLING_WINDOW", "0"},
                                                        {"COORDD_METRICS", "9401"},
                                                        {"COORDD_TRANSPORT", "rdma"},
                                                        {"COORDD_HOST_ALGORITHM", "ring"},
                                                        {"COORDD_GPU_ALGORITHM", "ring"},
                                                        {"COORDD_CHECK_RESULTS", "1"},
                                                        {"COORDD_CHECK_RESULTS", "0"},
                                                        {"COORDD_CHECK_RESULTS", "nan"},
                                                        {"COORDD_LOG_LEVEL", "loud"},
                                                        {"COORDD_TIMEOUT", "0"},
                                                        {"COORDD_TIMEOUT", "nan"},
                                                        {"COORDD_JOIN_TIMEOUT", "soon"}}) {
    EXPECT_THAT(WorkerOptionsFrom({{name, value}}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr(name), HasSubstr(value), HasSubstr("expected"))));
  }
}

TEST(OptionsFromEnvironment, TakeAnEmptyVariableForAnAbsentOne) {
  const auto options = WorkerOptionsFrom({{"COORDD_RANK", ""}, {"COORDD_TIMEOUT", ""}});
  ASSERT_THAT(options, IsOk());
  EXPECT_EQ(options->launcher_rank, -1);
}

TEST(OptionsFromEnvironment, TakeHintsFromTheLauncher) {
  const auto options = WorkerOptionsFrom(SlurmTask());
  ASSERT_THAT(options, IsOk());
  EXPECT_EQ(options->launch.launcher, "slurm");
  EXPECT_EQ(options->launcher_rank, 5);
  EXPECT_EQ(options->launcher_local_rank, 1);
  EXPECT_EQ(options->min_workers, 8);
  EXPECT_EQ(options->max_workers, 8);
  EXPECT_EQ(options->job, "4711.2");
}

TEST(OptionsFromEnvironment, PutOurOwnVariablesBeforeTheLaunchers) {
  Environment environment = SlurmTask();
  environment.insert(
      {{"COORDD_SIZE", "4"}, {"COORDD_MIN_WORKERS", "2"}, {"COORDD_JOB_ID", "bert"}});
  const auto options = WorkerOptionsFrom(environment);
  ASSERT_THAT(options, IsOk());
  EXPECT_EQ(options->launcher_rank, 5);
  EXPECT_EQ(options->min_workers, 2);
  EXPECT_EQ(options->max_workers, 4);
  EXPECT_EQ(options->job, "bert");
}

TEST(OptionsFromEnvironment, IgnoreALauncherOnRequest) {
  Environment environment = SlurmTask();
  environment["COORDD_LAUNCHER"] = "none";
  const auto options = WorkerOptionsFrom(environment);
  ASSERT_THAT(options, IsOk());
  EXPECT_EQ(options->launcher_rank, -1);
  EXPECT_EQ(options->max_workers, 0);
  EXPECT_EQ(options->job, "default");
}

TEST(OptionsFromEnvironment, KnowAnAddressFromAuto) {
  EXPECT_TRUE(WorkerOptionsFrom({{"COORDD_ADDR", "auto"}})->auto_coordinator);
  EXPECT_FALSE(WorkerOptionsFrom({{"COORDD_ADDR", "launch:1"}})->auto_coordinator);
  EXPECT_EQ(WorkerOptionsFrom({{"COORDD_METRICS", "auto"}})->metrics, (HostPort{"", 0}));
  EXPECT_EQ(WorkerOptionsFrom({{"COORDD_METRICS", "auto:9400"}})->metrics, (HostPort{"", 9400}));
}

TEST(OptionsFromEnvironment, ReadTheRangeOfPorts) {
  EXPECT_EQ(WorkerOptionsFrom({{"COORDD_PORT_RANGE", "20000-20099"}})->ports,
            (PortRange{20000, 20099}));
}

}  // namespace
}  // namespace coordd
