#include "client/coordrun/plan/torch_variables.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/coordrun/plan/worker_environment.h"
#include "client/coordrun/wire/torch_roster.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

RunOptions RunFor(int32_t np) {
  RunOptions options;
  options.np = np;
  options.command = {"train"};
  return options;
}

TEST(TorchVariables, AreWhatTorchrunGivesItsPrograms) {
  EXPECT_EQ(
      TorchVariables(TorchNames(RunFor(4)),
                     {.rank = 3, .size = 4, .local_rank = 1, .local_size = 2, .group_rank = 1},
                     {.address = "10.0.0.1", .port = 29500}),
      (Environment{{"RANK", "3"},
                   {"WORLD_SIZE", "4"},
                   {"LOCAL_RANK", "1"},
                   {"LOCAL_WORLD_SIZE", "2"},
                   {"GROUP_RANK", "1"},
                   {"MASTER_ADDR", "10.0.0.1"},
                   {"MASTER_PORT", "29500"},
                   {"COORDD_TORCH_ENV",
                    "RANK,WORLD_SIZE,LOCAL_RANK,LOCAL_WORLD_SIZE,GROUP_RANK,"
                    "MASTER_ADDR,MASTER_PORT"}}));
}

TEST(TorchVariables, SayNothingOfAMasterThatIsNotKnown) {
  const Environment variables = TorchVariables(TorchNames(RunFor(2)), {.size = 2}, {});
  EXPECT_THAT(variables, Not(Contains(Key("MASTER_ADDR"))));
  EXPECT_THAT(variables, Contains(Pair("COORDD_TORCH_ENV",
                                       "RANK,WORLD_SIZE,LOCAL_RANK,LOCAL_WORLD_SIZE,GROUP_RANK")));
}

TEST(TorchVariables, OfTheUserWinWithALine) {
  RunOptions options = RunFor(2);
  EXPECT_THAT(TorchOverrides(options), IsEmpty());
  options.variables = {{"MASTER_PORT", "29500"}, {"OTHER", "1"}};
  EXPECT_EQ(TorchOverrides(options),
            "-x MASTER_PORT wins over what coordrun would set for torch.distributed");
  EXPECT_THAT(TorchNames(options), Not(Contains("MASTER_PORT")));
  options.torch_env = false;
  EXPECT_THAT(TorchNames(options), IsEmpty());
  EXPECT_THAT(TorchOverrides(options), IsEmpty());
}

TEST(EnvironmentOfWorker, HasTorchsVariablesBesideItsOwn) {
  RunOptions options = RunFor(2);
  options.size = 6;
  options.first_rank = 4;
  const auto environment = EnvironmentOfWorker(options, {}, 1, {{"MASTER_ADDR", "mine"}});
  ASSERT_THAT(environment, IsOk());
  EXPECT_THAT(*environment,
              IsSupersetOf({Pair("RANK", "5"), Pair("WORLD_SIZE", "6"), Pair("LOCAL_RANK", "1"),
                            Pair("LOCAL_WORLD_SIZE", "2"), Pair("GROUP_RANK", "2"),
                            Pair("COORDD_RANK", "5"), Pair("MASTER_ADDR", "mine")}));
  options.torch_env = false;
  const auto without = EnvironmentOfWorker(options, {}, 1, {});
  EXPECT_THAT(*without, Not(Contains(Key("RANK"))));
  EXPECT_THAT(*without, Not(Contains(Key("COORDD_TORCH_ENV"))));
}

// "place 3 5 8 1 4 1": the worker, then its rank, size, local rank, local size and group; "master
// ADDRESS PORT".
std::vector<std::string> TextsOf(const std::vector<AgentOrder>& orders) {
  std::vector<std::string> texts;
  for (const AgentOrder& order : orders) {
    const v1::TorchPlaceOrder& place = order.place();
    texts.push_back(
        order.has_place()
            ? absl::StrJoin({place.worker(), place.rank(), place.size(), place.local_rank(),
                             place.local_size(), place.group_rank()},
                            " ")
            : absl::StrCat(order.master().address(), " ", order.master().port()));
    texts.back().insert(0, order.has_place() ? "place " : "master ");
  }
  return texts;
}

std::string MasterText(const TorchRoster& roster) {
  const auto master = roster.Master();
  return master ? absl::StrCat("master ", master->address(), " ", master->port()) : "";
}

AgentReport ReportOf(int32_t number, const std::string& node, const std::string& labels = "") {
  AgentReport report;
  report.set_number(number);
  report.set_node(node);
  report.set_labels(labels);
  report.set_coordinator("10.0.0.1:7400");
  report.set_address("10.0.0.1" + std::to_string(number));
  report.set_master_port(30000 + number);
  return report;
}

TEST(TorchRoster, NumbersWorkersAsCoorddWill) {
  TorchRoster roster(/*wanted=*/true, 4);
  roster.Take({0, 1, 2}, ReportOf(0, "n0"));
  roster.Take({3}, ReportOf(1, "n1"));
  roster.Arrange();
  EXPECT_THAT(TextsOf(roster.OrdersFor({0, 1, 2}, false)),
              ElementsAre("place 0 0 4 0 3 0", "place 1 1 4 1 3 0", "place 2 2 4 2 3 0",
                          "master 10.0.0.10 30000"));
  EXPECT_THAT(TextsOf(roster.OrdersFor({3}, false)),
              ElementsAre("place 3 3 4 0 1 1", "master 10.0.0.10 30000"));
  EXPECT_THAT(TextsOf(roster.OrdersFor({0, 1, 2, 3}, /*shared=*/true)),
              ElementsAre("master 10.0.0.10 30000"))
      << "Slurm tells its tasks the rest";
}

TEST(TorchRoster, KeepsTheRanksOfANodeTogether) {
  TorchRoster roster(true, 4);  // srun -m cyclic, or two names of one host
  for (int32_t task = 0; task < 4; ++task)
    roster.Take({task}, ReportOf(task, task % 2 == 0 ? "n0" : "n1"));
  roster.Arrange();
  EXPECT_THAT(TextsOf(roster.OrdersFor({0, 1, 2, 3}, true)),
              ElementsAre("place 0 0 4 0 2 0", "place 1 2 4 0 2 1", "place 2 1 4 1 2 0",
                          "place 3 3 4 1 2 1", "master 10.0.0.10 30000"));
}

TEST(TorchRoster, FollowsTopologyLabels) {
  TorchRoster roster(true, 2);
  roster.Take({0}, ReportOf(0, "n0", "aisle2/rack1"));
  roster.Take({1}, ReportOf(1, "n1", "aisle1/rack7"));
  roster.Arrange();
  EXPECT_THAT(TextsOf(roster.OrdersFor({0}, false)),
              ElementsAre("place 0 1 2 0 1 1", "master 10.0.0.11 30001"));
  EXPECT_EQ(roster.master_agent(), 1);
}

TEST(TorchRoster, NamesTheMasterOnCoorddsMachineByTheWayToIt) {
  for (const char* own : {"10.0.0.1", "127.0.0.1", ""}) {
    TorchRoster roster(true, 1);
    AgentReport report = ReportOf(0, "n0");
    report.set_address(own);
    roster.Take({0}, report);
    roster.Arrange();
    EXPECT_EQ(MasterText(roster), "master @ 30000") << own;
  }
}

TEST(TorchRoster, MovesTheMasterWhenMembersChange) {
  TorchRoster roster(true, 2);
  roster.Take({0}, ReportOf(0, "n0"));
  roster.Take({1}, ReportOf(1, "n1"));
  roster.Arrange();
  roster.TakePort(0, 31000);
  EXPECT_EQ(MasterText(roster), "master 10.0.0.10 31000");
  roster.Lose(0);
  EXPECT_EQ(MasterText(roster), "master 10.0.0.11 30001");
  AgentReport late = ReportOf(2, "n2");
  late.set_first_local(1);
  late.set_local_size(2);
  roster.Take({5}, late);
  EXPECT_THAT(TextsOf(roster.OrdersFor({5}, false)),
              ElementsAre("place 5 5 6 1 2 2", "master 10.0.0.11 30001"));
  roster.Lose(1);
  roster.Lose(2);
  EXPECT_THAT(MasterText(roster), IsEmpty());
  EXPECT_EQ(roster.master_agent(), -1);
}

TEST(TorchRoster, SaysNothingWithNoTorchEnv) {
  TorchRoster roster(false, 1);
  roster.Take({0}, ReportOf(0, "n0"));
  roster.Arrange();
  EXPECT_THAT(TextsOf(roster.OrdersFor({0}, false)), IsEmpty());
  EXPECT_EQ(roster.master_agent(), -1);
}

}  // namespace
}  // namespace coordd
