#include "worker/worker_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

WorkerOptions Valid() {
  WorkerOptions options;
  options.coordinator = {"launch", 29650};
  return options;
}

TEST(WorkerOptions, TakeDefaultsFromAnEmptyEnvironment) {
  const auto options = WorkerOptionsFrom({});
  ASSERT_THAT(options, IsOk());
  EXPECT_EQ(options->job, "default");
  EXPECT_EQ(options->launcher_rank, -1);
  EXPECT_EQ(options->min_workers, 0);
  EXPECT_EQ(options->collective_timeout, absl::Minutes(10));
  EXPECT_FALSE(options->metrics.has_value());
}

TEST(WorkerOptions, ReadEveryVariable) {
  const auto options = WorkerOptionsFrom({{"COORDD_ADDR", "[::1]:29650"},
                                          {"COORDD_JOB_ID", "bert"},
                                          {"COORDD_RANK", "3"},
                                          {"COORDD_SIZE", "8"},
                                          {"COORDD_LOCAL_RANK", "1"},
                                          {"COORDD_MIN_WORKERS", "4"},
                                          {"COORDD_NODE_ID", "n1"},
                                          {"COORDD_TOPOLOGY", "aisle3/rack12"},
                                          {"COORDD_METRICS", "0.0.0.0:0"},
                                          {"COORDD_TRANSPORT", "ucx"},
                                          {"COORDD_JOIN_TIMEOUT", "1.5"},
                                          {"COORDD_TIMEOUT", "30"}});
  ASSERT_THAT(options, IsOk());
  EXPECT_EQ(options->coordinator, (HostPort{"::1", 29650}));
  EXPECT_EQ(options->job, "bert");
  EXPECT_EQ(options->launcher_rank, 3);
  EXPECT_EQ(options->launcher_local_rank, 1);
  EXPECT_EQ(options->min_workers, 4);
  EXPECT_EQ(options->max_workers, 8);
  EXPECT_EQ(options->node_id, "n1");
  EXPECT_THAT(options->topology, ElementsAre("aisle3", "rack12"));
  EXPECT_EQ(options->metrics, (HostPort{"0.0.0.0", 0}));
  EXPECT_EQ(options->transport, TransportChoice::kUcx);
  EXPECT_EQ(options->join_timeout, absl::Seconds(1.5));
  EXPECT_EQ(options->collective_timeout, absl::Seconds(30));
  EXPECT_THAT(options->Validate(), IsOk());
}

TEST(WorkerOptions, ReadTheTokenWithoutTheEndOfItsLine) {
  TempDirectory directory;
  const std::string path = directory.path() + "/token";
  std::ofstream(path) << "secret\n";
  const auto options = WorkerOptionsFrom({{"COORDD_TOKEN_FILE", path}});
  ASSERT_THAT(options, IsOk());
  EXPECT_EQ(options->token, "secret");
  EXPECT_THAT(WorkerOptionsFrom({{"COORDD_TOKEN_FILE", path + ".missing"}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("COORDD_TOKEN_FILE")));
}

TEST(WorkerOptions, NameTheVariableThatIsWrong) {
  for (const auto& [name, value] :
       std::vector<std::pair<std::string, std::string>>{{"COORDD_ADDR", "nowhere"},
                                                        {"COORDD_RANK", "-1"},
                                                        {"COORDD_RANK", "two"},
                                                        {"COORDD_SIZE", "0"},
                                                        {"COORDD_METRICS", "9401"},
                                                        {"COORDD_TRANSPORT", "rdma"},
                                                        {"COORDD_TIMEOUT", "0"},
                                                        {"COORDD_TIMEOUT", "nan"},
                                                        {"COORDD_JOIN_TIMEOUT", "soon"}}) {
    EXPECT_THAT(WorkerOptionsFrom({{name, value}}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr(name), HasSubstr(value), HasSubstr("expected"))));
  }
}

TEST(WorkerOptions, TakeAnEmptyVariableForAnAbsentOne) {
  const auto options = WorkerOptionsFrom({{"COORDD_RANK", ""}, {"COORDD_TIMEOUT", ""}});
  ASSERT_THAT(options, IsOk());
  EXPECT_EQ(options->launcher_rank, -1);
}

TEST(WorkerOptions, AreChecked) {
  EXPECT_THAT(Valid().Validate(), IsOk());
  WorkerOptions options;
  EXPECT_THAT(options.Validate(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("COORDD_ADDR")));
  options = Valid();
  options.job = "a/b";
  EXPECT_THAT(options.Validate(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a/b")));
  options = Valid();
  options.min_workers = 4;
  options.max_workers = 2;
  EXPECT_THAT(options.Validate(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("4 to 2")));
  options = Valid();
  options.token = std::string(257, 'x');
  EXPECT_THAT(options.Validate(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("token")));
  options = Valid();
  options.fusion_buffer_bytes = 1;
  EXPECT_THAT(options.Validate(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("fusion")));
  options = Valid();
  options.collective_timeout = absl::ZeroDuration();
  EXPECT_THAT(options.Validate(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("COORDD_TIMEOUT")));
}

}  // namespace
}  // namespace coordd
