#include "worker/api/environment_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "tests/support/status_matchers.h"
#include "worker/api/options_from_environment.h"

namespace coordd {
namespace {

// What WorkerOptionsFrom has read, of all that a variable with a written default decides.
std::string Described(const WorkerOptions& options) {
  return absl::StrCat(
      options.auto_coordinator, " ", options.job, " ", options.min_workers, " ",
      options.max_workers, " ", options.launcher_rank, " ", static_cast<int>(options.log_level),
      " ", static_cast<int>(options.transport), " ", static_cast<int>(options.host_algorithm), " ",
      static_cast<int>(options.device_rules.algorithm), " ", options.device_rules.allow_shared_gpu,
      " ", options.device_rules.require_rdma, " ", options.register_gpu_buffers, " ",
      options.symmetric_gpu_windows, " ", options.shrink_gpu_communicators, " ",
      options.direct_gpu_communicators, " ", absl::FormatDuration(options.gpu_gate_limit), " ",
      absl::FormatDuration(options.join_timeout), " ", absl::FormatDuration(options.resume_timeout),
      " ", absl::FormatDuration(options.collective_timeout), " ",
      static_cast<int>(options.on_failure), " ", options.timeline_mark_steps);
}

// The value between the backquotes of "`auto`"; empty where the default is a phrase.
std::string WrittenDefault(const VariableRow& row) {
  absl::string_view text = row.default_value;
  if (!absl::ConsumePrefix(&text, "`") || !absl::ConsumeSuffix(&text, "`")) return "";
  return std::string(text);
}

TEST(EnvironmentTable, IsThePageOfTheDocuments) {
  std::ifstream file(COORDD_TEST_ENVIRONMENT_PAGE);
  std::ostringstream page;
  ASSERT_TRUE(file && (page << file.rdbuf())) << COORDD_TEST_ENVIRONMENT_PAGE;
  EXPECT_EQ(page.str(), EnvironmentPage())
      << "make it anew: coordd-worker --list-environment >docs/reference/environment.md";
}

TEST(EnvironmentTable, HasEachVariableOnceAndGroupsTogether) {
  std::set<absl::string_view> names;
  std::set<absl::string_view> ended;
  absl::string_view group;
  for (const VariableRow& row : VariableTable()) {
    EXPECT_TRUE(absl::StartsWith(row.name, "COORDD_")) << row.name;
    EXPECT_TRUE(names.insert(row.name).second) << row.name << " stands twice";
    if (row.group != group) ended.insert(group);
    EXPECT_EQ(ended.count(row.group), 0u) << row.group << " is divided";
    group = row.group;
  }
  EXPECT_GT(names.size(), 40u);
}

TEST(EnvironmentTable, SaysOfEachVariableAllThatThePageNeeds) {
  for (const VariableRow& row : VariableTable()) {
    EXPECT_FALSE(row.summary.empty() || row.values.empty() || row.default_value.empty() ||
                 row.readers.empty())
        << row.name;
    EXPECT_FALSE(absl::EndsWith(row.summary, ".")) << row.name << ": a full stop is added";
    EXPECT_TRUE(row.more.empty() || absl::EndsWith(row.more, ".")) << row.name;
  }
}

TEST(EnvironmentTable, MakesAPageOfLinesThatAnEditorShows) {
  for (const absl::string_view line : absl::StrSplit(EnvironmentPage(), '\n'))
    EXPECT_LE(line.size(), 132u) << line;
}

TEST(EnvironmentTable, HasDefaultsThatChangeNothingWhenTheyAreGiven) {
  const auto without = WorkerOptionsFrom({});
  ASSERT_THAT(without, IsOk());
  int tried = 0;
  for (const VariableRow& row : VariableTable()) {
    const std::string value = WrittenDefault(row);
    if (value.empty() || !absl::StartsWith(row.readers, "workers")) continue;
    const auto with = WorkerOptionsFrom({{std::string(row.name), value}});
    ASSERT_THAT(with, IsOk());
    EXPECT_EQ(Described(*with), Described(*without)) << row.name << "=" << value;
    ++tried;
  }
  EXPECT_GE(tried, 14);
}

// The test above would find a wrong default: these are read, and another value is seen.
TEST(EnvironmentTable, HasNoDefaultThatIsSimplyNotRead) {
  const std::string without = Described(*WorkerOptionsFrom({}));
  const std::vector<Environment> others = {
      {{"COORDD_ADDR", "node1:1"}},
      {{"COORDD_JOIN_TIMEOUT", "301"}},
      {{"COORDD_TIMEOUT", "601"}},
      {{"COORDD_RESUME_TIMEOUT", "301"}},
      {{"COORDD_ON_FAILURE", "raise"}},
      {{"COORDD_TRANSPORT", "shm"}},
      {{"COORDD_HOST_ALGORITHM", "flat"}},
      {{"COORDD_GPU_ALGORITHM", "flat"}},
      {{"COORDD_GPU_REGISTER", "0"}},
      {{"COORDD_GPU_SHRINK", "0"}},
      {{"COORDD_GPU_DIRECT", "0"}},
      {{"COORDD_GPU_GATE_LIMIT", "30"}},
      {{"COORDD_ALLOW_SHARED_GPU", "1"}},
      {{"COORDD_REQUIRE_RDMA", "1"}},
      {{"COORDD_TIMELINE_MARK_CYCLES", "1"}},
      {{"COORDD_LOG_LEVEL", "error"}},
  };
  for (const Environment& other : others) {
    const std::string& name = other.begin()->first;
    EXPECT_NE(Described(*WorkerOptionsFrom(other)), without) << name;
    EXPECT_NE(WrittenDefault(VariableNamed(name)), "") << name;
  }
}

}  // namespace
}  // namespace coordd
