#include "common/launch/auto_coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/launch/launcher_special.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

LaunchPlace Task(int32_t rank) {
  LaunchPlace place;
  place.launcher = "slurm";
  place.title = "Slurm";
  place.rank = rank;
  place.size = 4;
  place.nodes = 2;
  place.hosts = {"n1", "n2"};
  place.run_name = "4711.0";
  place.instance = "slurm cluster1 4711.0";
  return place;
}

AutoSettings Settings() {
  AutoSettings settings;
  settings.shared_directory = "/users/me";
  settings.local_directory = "/run/user/1/coordd";
  return settings;
}

TEST(AutoCoordinator, IsStartedByRankZeroAndFoundByTheOthers) {
  const auto first = PlanAutoCoordinator(Task(0), Settings());
  const auto other = PlanAutoCoordinator(Task(3), Settings());
  ASSERT_THAT(first, IsOk());
  ASSERT_THAT(other, IsOk());
  EXPECT_EQ(first->role, AutoPlan::Role::kStarts);
  EXPECT_EQ(other->role, AutoPlan::Role::kFinds);
  EXPECT_THAT(first->rendezvous_file, AllOf(StartsWith("/users/me/.coordd/run/4711.0-"),
                                            testing::EndsWith("/coordd.json")));
  EXPECT_EQ(first->rendezvous_file, other->rendezvous_file);
  EXPECT_EQ(first->ports, other->ports);
  EXPECT_FALSE(first->one_node);
}

TEST(AutoCoordinator, MeetsElsewhereInAnotherStart) {
  LaunchPlace again = Task(0);
  again.instance += " 1";
  EXPECT_NE(PlanAutoCoordinator(again, Settings())->rendezvous_file,
            PlanAutoCoordinator(Task(0), Settings())->rendezvous_file);
}

TEST(AutoCoordinator, WhoSeesNoJobMeetsWhoSeesOneAndTwoJobsNeverMeet) {
  const auto seen_from = [](int32_t rank, const std::string& jobs) {
    LaunchPlace place = Task(rank);
    place.instance = "openmpi 7.0;tcp://192.0.2.2:35101";
    if (!jobs.empty()) place.instance += kInJob + jobs;
    return place;
  };
  const auto meet = [](const LaunchPlace& writer, const LaunchPlace& reader) {
    const std::string file = PlanAutoCoordinator(reader, Settings())->rendezvous_file;
    const std::string written = DirectoryOfInstance(writer);
    const bool same = DirectoryOfInstance(reader) == written;
    const bool other = !OtherRendezvousFiles(reader, file, {"4711.0-00000000", written}).empty();
    return (same || other) && IsOfThisStart(reader, writer.instance);
  };
  const LaunchPlace in_one = seen_from(0, "pbs 6001"), in_two = seen_from(1, "pbs 6002");
  const LaunchPlace hidden = seen_from(1, "");
  EXPECT_TRUE(meet(in_one, seen_from(1, "pbs 6001")));
  EXPECT_TRUE(meet(in_one, hidden));
  EXPECT_TRUE(meet(hidden, in_two));
  EXPECT_TRUE(meet(hidden, hidden));
  EXPECT_FALSE(meet(in_one, in_two));
  LaunchPlace another_mpirun = hidden;
  another_mpirun.instance += " 9";
  EXPECT_FALSE(meet(in_one, another_mpirun));
}

TEST(AutoCoordinator, StaysOnOneNodeWhenTheJobDoes) {
  LaunchPlace place = Task(1);
  place.nodes = 1;
  const auto plan = PlanAutoCoordinator(place, Settings());
  EXPECT_TRUE(plan->one_node);
  EXPECT_THAT(plan->rendezvous_file, StartsWith("/run/user/1/coordd/run/4711.0-"));
  AutoSettings no_local = Settings();
  no_local.local_directory.clear();
  EXPECT_THAT(PlanAutoCoordinator(place, no_local)->rendezvous_file, StartsWith("/users/me/"));
}

TEST(AutoCoordinator, IsAloneWithoutALauncherOrWithOneTask) {
  EXPECT_EQ(PlanAutoCoordinator(LaunchPlace(), Settings())->role, AutoPlan::Role::kAlone);
  LaunchPlace single = Task(0);
  single.size = 1;
  EXPECT_EQ(PlanAutoCoordinator(single, Settings())->role, AutoPlan::Role::kAlone);
  EXPECT_THAT(PlanAutoCoordinator(LaunchPlace(), Settings())->rendezvous_file, testing::IsEmpty());
}

TEST(AutoCoordinator, RankZeroInAJobOfItsOwnStillStartsTheOneThatOthersLookFor) {
  AutoSettings one = Settings();
  one.workers = 1;
  const auto first = PlanAutoCoordinator(Task(0), one);
  EXPECT_EQ(first->role, AutoPlan::Role::kStarts);
  EXPECT_EQ(first->rendezvous_file, PlanAutoCoordinator(Task(2), Settings())->rendezvous_file);
  EXPECT_EQ(PlanAutoCoordinator(Task(2), one)->role, AutoPlan::Role::kAlone);
  one.shared_directory.clear();
  EXPECT_EQ(PlanAutoCoordinator(Task(0), one)->role, AutoPlan::Role::kAlone);
}

TEST(AutoCoordinator, SaysWhatToDoWhenThereIsNoWay) {
  LaunchPlace script;
  script.not_a_rank = "this process is the batch script";
  EXPECT_THAT(PlanAutoCoordinator(script, Settings()),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("the batch script")));
  AutoSettings no_home = Settings();
  no_home.shared_directory.clear();
  EXPECT_THAT(PlanAutoCoordinator(Task(1), no_home),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("home directory"), HasSubstr("COORDD_RENDEZVOUS_FILE"))));
  LaunchPlace nameless = Task(1);
  nameless.instance.clear();
  EXPECT_THAT(PlanAutoCoordinator(nameless, Settings()),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("nothing in common")));
  LaunchPlace sizeless = Task(1);
  sizeless.size = -1;
  EXPECT_THAT(PlanAutoCoordinator(sizeless, Settings()),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("COORDD_SIZE")));
  LaunchPlace pod = Task(1);
  pod.node_level = true;
  EXPECT_THAT(PlanAutoCoordinator(pod, Settings()),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("coordrun -np WORKERS")));
  AutoSettings with_file = Settings();
  with_file.rendezvous_file = "/shared/coordd.json";
  EXPECT_EQ(PlanAutoCoordinator(pod, with_file)->rendezvous_file, "/shared/coordd.json");
  AutoSettings four = Settings();
  four.workers = 4;
  EXPECT_THAT(PlanAutoCoordinator(LaunchPlace(), four),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("a job of 4 workers")));
}

TEST(AutoCoordinator, ObeysTheFileThatIsNamed) {
  AutoSettings settings = Settings();
  settings.rendezvous_file = "/scratch/here.json";
  LaunchPlace nameless = Task(2);
  nameless.instance.clear();
  EXPECT_EQ(PlanAutoCoordinator(nameless, settings)->rendezvous_file, "/scratch/here.json");
}

TEST(AutoCoordinator, TakesThePortsThatAreGivenElseThoseOfTheRule) {
  const auto plan = PlanAutoCoordinator(Task(0), Settings());
  EXPECT_EQ(plan->ports.first, PortOfInstance("slurm cluster1 4711.0"));
  for (int i = 0; i < 1000; ++i) {
    LaunchPlace place = Task(0);
    place.instance = "job " + std::to_string(i);
    const PortRange ports = PlanAutoCoordinator(place, Settings())->ports;
    EXPECT_GE(ports.first, 20000);
    EXPECT_LE(ports.last, 39999);
    EXPECT_LE(ports.first, ports.last);
  }
  AutoSettings firewall = Settings();
  firewall.ports = PortRange{5000, 5010};
  EXPECT_EQ(PlanAutoCoordinator(Task(0), firewall)->ports, (PortRange{5000, 5010}));
}

TEST(AutoCoordinator, MakesNamesThatArePartsOfPaths) {
  LaunchPlace place = Task(0);
  place.run_name = "../4711[3].server/x";
  const std::string name = DirectoryOfInstance(place);
  EXPECT_EQ(name.find('/'), std::string::npos);
  EXPECT_NE(name[0], '.');
  place.run_name = std::string(500, 'x');
  EXPECT_LT(DirectoryOfInstance(place).size(), 100u);
}

}  // namespace
}  // namespace coordd
