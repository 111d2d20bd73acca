#include "relay/node_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace coordd {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// As prometheus-cpp writes it.
std::string WorkerText(int rank) {
  return absl::StrCat(
      "# HELP coordd_worker_rank Rank in the generation\n# TYPE coordd_worker_rank gauge\n"
      "coordd_worker_rank ",
      rank,
      "\n# HELP coordd_worker_generation Generation\n# TYPE coordd_worker_generation gauge\n"
      "coordd_worker_generation 3\n"
      "# HELP coordd_worker_collectives_total Tensors\n"
      "# TYPE coordd_worker_collectives_total counter\n"
      "coordd_worker_collectives_total{backend=\"host\",code=\"OK\",kind=\"allreduce\"} 10000001\n"
      "# HELP coordd_worker_execution_seconds Launch to end\n"
      "# TYPE coordd_worker_execution_seconds histogram\n"
      "coordd_worker_execution_seconds_count 4\n"
      "coordd_worker_execution_seconds_sum 0.25\n"
      "coordd_worker_execution_seconds_bucket{le=\"0.1\"} 3\n"
      "coordd_worker_execution_seconds_bucket{le=\"+Inf\"} 4\n"
      "# HELP coordd_worker_arrival_lag_seconds Late\n"
      "# TYPE coordd_worker_arrival_lag_seconds gauge\n"
      "coordd_worker_arrival_lag_seconds 0.0",
      rank, "\n# HELP process_open_fds Open\n# TYPE process_open_fds gauge\nprocess_open_fds ",
      20 + rank,
      "\n# HELP coordd_worker_gpu_throttled Clocks\n# TYPE coordd_worker_gpu_throttled gauge\n"
      "coordd_worker_gpu_throttled{reason=\"power cap\"} 1\n");
}

TEST(NodeMetrics, AddUpWhatIsCountedAndKeepWhatFindsARank) {
  const std::string text = NodeMetrics({WorkerText(2), WorkerText(5)});
  for (const char* line :
       {"coordd_worker_ranks 2\n", "coordd_worker_generation 3\n",
        "coordd_worker_collectives_total{backend=\"host\",code=\"OK\",kind=\"allreduce\"} "
        "20000002\n",
        "coordd_worker_execution_seconds_count 8\n", "coordd_worker_execution_seconds_sum 0.5\n",
        "coordd_worker_execution_seconds_bucket{le=\"0.1\"} 6\n",
        "coordd_worker_execution_seconds_bucket{le=\"+Inf\"} 8\n",
        "coordd_worker_arrival_lag_seconds{rank=\"5\"} 0.05", "process_open_fds 25\n",
        "coordd_worker_gpu_throttled{reason=\"power cap\",rank=\"2\"} 1\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  EXPECT_THAT(text, Not(HasSubstr("coordd_worker_rank ")));
  // Each family has its head once.
  const std::string head = "# TYPE coordd_worker_collectives_total counter";
  EXPECT_EQ(text.find(head), text.rfind(head));
}

TEST(NodeMetrics, TakeAFamilyThatOnlyOneHas) {
  const std::string text = NodeMetrics(
      {WorkerText(0),
       absl::StrCat(WorkerText(1), "# HELP a_total x\n# TYPE a_total counter\na_total 7\n")});
  EXPECT_THAT(text, HasSubstr("# TYPE a_total counter\na_total 7\n"));
}

TEST(NodeMetrics, LeaveOutWhatIsNoMetric) {
  const std::string text = NodeMetrics({"<html>\nno 7\n# HELP\n", "", WorkerText(1)});
  EXPECT_THAT(text, Not(HasSubstr("html")));
  EXPECT_THAT(text, Not(HasSubstr("no 7")));
  EXPECT_THAT(text, HasSubstr("coordd_worker_execution_seconds_count 4\n"));
}

TEST(NodeMetrics, SayThatNobodyIsThere) {
  EXPECT_THAT(NodeMetrics({}), HasSubstr("coordd_worker_ranks 0\n"));
}

}  // namespace
}  // namespace coordd
