#include "client/coordrun/plan/ddl_part.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "client/coordrun/plan/commands.h"
#include "client/coordrun/plan/run_flags.h"
#include "client/coordrun/plan/run_plan.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// As main does: "-H h1,h2 --accelerators 6 train".
absl::StatusOr<RunPlan> PlanOf(std::vector<std::string> line, Environment environment = {},
                               std::optional<AllocatedHosts> allocation = std::nullopt) {
  line.push_back("./train");
  RunFlags flags = ParseRunFlags(line);
  if (flags.exit) return absl::InternalError("refused by the flags");
  const absl::Status used = UseDdlVariables(environment, &flags.options);
  if (!used.ok()) return used;
  return PlanRun(flags.options, {.environment = std::move(environment),
                                 .hostname = "launch.cluster",
                                 .allocation = std::move(allocation)});
}

std::vector<std::string> Places(const absl::StatusOr<RunPlan>& plan) {
  std::vector<std::string> places;
  if (!plan.ok()) return {std::string(plan.status().message())};
  for (const HostRanks& host : plan->hosts)
    places.push_back(absl::StrCat(host.host, ":", host.count, " ", host.topology));
  return places;
}

auto Refused(const std::string& text) {
  return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text));
}

TEST(DdlPart, TheShapeGivesWorkersAndLabels) {
  EXPECT_THAT(Places(PlanOf({"-H", "h1,h2", "--mode", "p:6x2x1x1"})),
              ElementsAre("h1:6 ", "h2:6 "));
  EXPECT_THAT(Places(PlanOf({"-H", "h1,h2", "--accelerators", "4"})),
              ElementsAre("h1:4 ", "h2:4 "));
  EXPECT_THAT(Places(PlanOf({"-H", "n[1-4]", "-accelerators", "2", "-racks", "2"})),
              ElementsAre("n1:2 rack1", "n2:2 rack1", "n3:2 rack2", "n4:2 rack2"));
  EXPECT_THAT(Places(PlanOf({"--host", "n[1-4]:2", "-m", "p:2x1x2x2"})),
              ElementsAre("n1:2 aisle1/rack1", "n2:2 aisle1/rack2", "n3:2 aisle2/rack1",
                          "n4:2 aisle2/rack2"));
  EXPECT_THAT(Places(PlanOf({"-np", "12", "-H", "h1,h2", "--nodes", "2", "--accelerators=6"})),
              ElementsAre("h1:6 ", "h2:6 "));
  // Hosts may differ where nobody says how many accelerators they have.
  EXPECT_THAT(Places(PlanOf({"-H", "h1:2,h2:3", "--racks", "2"})),
              ElementsAre("h1:2 rack1", "h2:3 rack2"));
}

TEST(DdlPart, SlotsOfASchedulerAreCoresAndNoAccelerators) {
  const AllocatedHosts lsf = {"LSF job 4711", {{"a01n01", 42}, {"a01n02", 42}}};
  EXPECT_THAT(Places(PlanOf({"--accelerators", "6", "--nodes", "1", "--racks", "2"}, {}, lsf)),
              ElementsAre("a01n01:6 rack1", "a01n02:6 rack2"));
  EXPECT_THAT(PlanOf({"--nodes", "1", "--racks", "2"}, {}, lsf), Refused("--accelerators N"));
  EXPECT_THAT(PlanOf({"--nodes", "18", "--racks", "4", "--aisles", "2"}, {}, lsf),
              Refused("?x18x4x2 (accelerators x nodes x racks x aisles) and 2 hosts"));
}

TEST(DdlPart, ASlurmStepHasAsManyTasksOnEachNode) {
  const Environment script = {
      {"SLURM_JOB_ID", "7"}, {"SLURM_JOB_NUM_NODES", "3"}, {"SLURM_NTASKS", "3"}};
  const auto plan = PlanOf({"--accelerators", "4"}, script);
  ASSERT_THAT(plan, IsOk());
  EXPECT_EQ(plan->np, 12);
  RunOptions options;
  EXPECT_THAT(SrunCommand(options, *plan, "coordrun"), Contains("--ntasks-per-node=4"));
  EXPECT_THAT(PlanOf({"--accelerators", "4", "--racks", "3"}, script), Refused("topology.conf"));
  const auto plain = PlanOf({}, script);
  ASSERT_THAT(plain, IsOk());
  EXPECT_THAT(SrunCommand(options, *plain, "coordrun"), Not(Contains(HasSubstr("per-node"))));
}

TEST(DdlPart, HereThereIsOneHost) {
  const auto plan = PlanOf({"--mode", "p:4x1x1x1"});
  ASSERT_THAT(plan, IsOk());
  EXPECT_EQ(plan->np, 4);
  EXPECT_EQ(plan->launcher, LauncherKind::kLocal);
  EXPECT_THAT(PlanOf({"--mode", "p:4x2x1x1"}),
              Refused("4x2x1x1 (accelerators x nodes x racks x aisles) and 1 host:"));
}

TEST(DdlPart, WhatDoesNotFitIsRefused) {
  EXPECT_THAT(PlanOf({"-np", "8", "-H", "h1,h2", "--mode", "p:6x2x1x1"}), Refused("-np is 8"));
  EXPECT_THAT(PlanOf({"-H", "h1:4,h2:4", "--mode", "p:6x2x1x1"}), Refused("host h1 has 4 slots"));
  EXPECT_THAT(PlanOf({"-H", "h1,h2,h3", "--mode", "p:6x2x1x1"}), Refused("3 hosts"));
  EXPECT_THAT(PlanOf({"-H", "h1,h2", "--mode", "p"}), Refused("--accelerators N"));
  EXPECT_THAT(
      PlanOf({"-H", "h1,h2", "--launcher", "mpirun", "--accelerators", "2", "--racks", "2"}),
      Refused("launcher mpirun"));
  EXPECT_THAT(PlanOf({"--launcher", "external", "-np", "2", "--accelerators", "2"}),
              Refused("launcher external"));
  for (const std::vector<std::string>& line :
       {std::vector<std::string>{"--mode", "p:6x2x1x1", "--racks", "4"},
        std::vector<std::string>{"--mode", "6x2"}, std::vector<std::string>{"--racks", "0"},
        std::vector<std::string>{"--host-discovery-script", "true", "--accelerators", "2"}}) {
    std::vector<std::string> whole = line;
    whole.push_back("./train");
    EXPECT_EQ(ParseRunFlags(whole).exit, kExitUsage) << line[0];
  }
}

TEST(DdlPart, DdlsVariablesNameHostsAndShape) {
  const Environment ddl = {{"DDL_HOST_LIST", "h1:0,2;h2:1,3"}, {"DDL_OPTIONS", "-mode p:2x1x2x1 "}};
  EXPECT_THAT(Places(PlanOf({}, ddl)), ElementsAre("h1:2 rack1", "h2:2 rack2"));
  EXPECT_EQ(PlanOf({}, ddl)->reason, "DDL_HOST_LIST names hosts");
  EXPECT_EQ(PlanOf({"-H", "h7:2"}, {{"DDL_HOST_LIST", "h1:0"}})->reason, "-H names hosts");
  // What the line says wins.
  EXPECT_THAT(Places(PlanOf({"-H", "h7:2"}, {{"DDL_HOST_LIST", "h1:0,2;h2:1,3"}})),
              ElementsAre("h7:2 "));
  EXPECT_THAT(Places(PlanOf({"--accelerators", "2"}, ddl)), ElementsAre("h1:2 ", "h2:2 "));
  EXPECT_THAT(PlanOf({"-np", "6"}, ddl), Refused("no DDL_OPTIONS (unset it)"));
  EXPECT_THAT(PlanOf({}, {{"DDL_HOST_LIST", "h1:0;h2:0"}}), Refused("rank 0 is there twice"));
  EXPECT_THAT(PlanOf({}, {{"DDL_OPTIONS", "-mode p:2y2"}}), Refused("DDL_OPTIONS: "));
  // A run of this machine alone, and one without a shape.
  EXPECT_THAT(PlanOf({"--launcher", "local", "-np", "3"}, ddl), IsOk());
  EXPECT_THAT(PlanOf({"-np", "3"}, {{"DDL_OPTIONS", "-mode p"}}), IsOk());
}

}  // namespace
}  // namespace coordd
