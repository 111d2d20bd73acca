// Programs that change what they do, on schedules: nothing differs between ranks, nothing is lost,
// all ends. The failing seed is printed; planted bugs must be noticed.
#include "tests/sim/schedule_sim.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/server/support/builders.h"
#include "tests/sim/random_programs.h"
#include "tests/sim/sim_seed.h"
#include "tests/support/histories.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using Kind = SimOp::Kind;

SimOp Submit(TensorSpec spec) { return {.kind = Kind::kSubmit, .tensors = {std::move(spec)}}; }

TEST(ScheduleSimTest, NoInterleavingMakesRanksExecuteDifferentThings) {
  int64_t scheduled = 0, negotiated = 0, cuts = 0, by_slot = 0, by_nccl = 0, staged = 0;
  for (uint64_t seed = 1; seed <= Histories<uint64_t>(400); ++seed) {
    ScheduleSim sim(seed, RandomPrograms(seed));
    ASSERT_THAT(sim.Run(), IsOk()) << Replay("schedules", seed, {});
    scheduled += sim.scheduled_batches();
    negotiated += sim.negotiated_batches();
    cuts += sim.cuts();
    by_slot += sim.by_slot();
    by_nccl += sim.scheduled_by_nccl();
    staged += sim.staged();
  }
  // It has tried what it is about.
  EXPECT_GT(scheduled, negotiated / 4);
  EXPECT_GT(by_nccl, Histories(1000));
  EXPECT_GT(staged, Histories(500));
  EXPECT_GT(cuts, Histories(400));
  EXPECT_GT(by_slot, Histories(4000));
}

TEST(ScheduleSimTest, ASteadyProgramSendsNothingOnceItsPatternIsKnown) {
  std::vector<SimProgram> programs(3);
  for (SimProgram& program : programs) {
    for (int step = 0; step < 200; ++step) {
      for (int i = 0; i < 5; ++i) program.push_back(Submit(Gradient(absl::StrCat("g", i), {100})));
      program.push_back({.kind = Kind::kWait});
    }
  }
  ScheduleSim sim(7, programs);
  ASSERT_THAT(sim.Run(), IsOk());
  EXPECT_EQ(sim.schedules(), 1);
  EXPECT_EQ(sim.cuts(), 0);
  EXPECT_LE(sim.reports(), 3 * 5 * 5);  // of the first steps
}

TEST(ScheduleSimTest, AMetricNowAndThenAndAValidationPassBreakNothing) {
  std::vector<SimProgram> programs(3);
  for (SimProgram& program : programs) {
    for (int step = 0; step < 100; ++step) {
      for (int i = 0; i < 5; ++i) program.push_back(Submit(Gradient(absl::StrCat("g", i), {100})));
      program.push_back({.kind = Kind::kWait});
      if (step % 10 != 9) continue;
      program.push_back(Submit(Gradient("loss", {1})));
      program.push_back({.kind = Kind::kWait});
    }
  }
  ScheduleSim sim(8, programs);
  ASSERT_THAT(sim.Run(), IsOk());
  EXPECT_EQ(sim.cuts(), 0);
}

TEST(ResumeSimTest, NoInterleavingOfCrashesLosesOrDoublesAnything) {
  const FaultSet faults = {Fault::kRestart, Fault::kBreak};
  int64_t crashes = 0, missed = 0, while_away = 0, scheduled = 0, by_slot = 0;
  for (uint64_t seed = 1; seed <= Histories<uint64_t>(200); ++seed) {
    ScheduleSim sim(seed, RandomPrograms(seed), PlantedBug::kNone, ScheduleFaultsOf(seed, faults));
    ASSERT_THAT(sim.Run(), IsOk()) << Replay("schedules", seed, faults);
    crashes += sim.crashes();
    missed += sim.missed();
    while_away += sim.while_away();
    by_slot += sim.by_slot_after_crash();
    scheduled += sim.scheduled_batches();
  }
  // It has tried what it is about.
  EXPECT_GT(crashes, Histories(200));
  EXPECT_GT(missed, Histories(100));
  EXPECT_GT(while_away, Histories(100));
  EXPECT_GT(by_slot, Histories(1000));
  EXPECT_GT(scheduled, Histories(1000));
}

TEST(ResumeSimTest, ASteadyProgramGoesOnByScheduleWhateverBecomesOfCoordd) {
  std::vector<SimProgram> programs(3);
  for (SimProgram& program : programs) {
    for (int step = 0; step < 200; ++step) {
      for (int i = 0; i < 5; ++i) program.push_back(Submit(Gradient(absl::StrCat("g", i), {100})));
      program.push_back({.kind = Kind::kWait});
    }
  }
  ScheduleSim sim(7, programs, PlantedBug::kNone, {.crashes = 20});
  ASSERT_THAT(sim.Run(), IsOk());
  EXPECT_EQ(sim.crashes(), 20);
  EXPECT_EQ(sim.cuts(), 0);
}

TEST(ScheduleSimTest, TensorsOnDevicesHaveAScheduleOfTheirOwn) {
  std::vector<SimProgram> programs(3);
  for (SimProgram& program : programs) {
    for (int step = 0; step < 100; ++step) {
      for (int i = 0; i < 4; ++i) {
        TensorSpec spec = Gradient(absl::StrCat("g", i), {100000});
        if (i < 2) spec.memory = MemoryKind::kCuda;
        program.push_back(Submit(spec));
      }
      program.push_back({.kind = Kind::kWait});
      if (step % 10 != 9) continue;
      TensorSpec loss = Gradient("loss", {1});
      loss.memory = MemoryKind::kCuda;
      program.push_back(Submit(loss));
      program.push_back({.kind = Kind::kWait});
    }
  }
  ScheduleSim sim(8, programs);
  ASSERT_THAT(sim.Run(), IsOk());
  EXPECT_EQ(sim.schedules(), 2);
  EXPECT_EQ(sim.cuts(), 0);
  EXPECT_GT(sim.scheduled_by_nccl(), 3 * 2 * 90);
  EXPECT_EQ(sim.staged(), 3 * 10);  // the loss
}

class PlantedResumeBugTest : public testing::TestWithParam<PlantedBug> {};

TEST_P(PlantedResumeBugTest, IsNoticed) {
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    ScheduleSim sim(seed, RandomPrograms(seed), GetParam(), {.crashes = 3});
    if (!sim.Run().ok()) return;
  }
  FAIL() << "400 seeds noticed nothing";
}

INSTANTIATE_TEST_SUITE_P(Bugs, PlantedResumeBugTest,
                         testing::Values(PlantedBug::kPlansBeforeAllAreBack,
                                         PlantedBug::kGenerationsStartAnew, PlantedBug::kNoFencing,
                                         PlantedBug::kMissedNotTold,
                                         PlantedBug::kUnansweredNotReported));

class PlantedBugTest : public testing::TestWithParam<PlantedBug> {};

TEST_P(PlantedBugTest, IsNoticed) {
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    ScheduleSim sim(seed, RandomPrograms(seed), GetParam());
    if (!sim.Run().ok()) return;
  }
  FAIL() << "400 seeds noticed nothing";
}

INSTANTIATE_TEST_SUITE_P(Bugs, PlantedBugTest,
                         testing::Values(PlantedBug::kCutTooEarly, PlantedBug::kLaunchesWhenFrozen,
                                         PlantedBug::kReportNotDropped, PlantedBug::kNoBreak,
                                         PlantedBug::kForgetsSlotsEarly,
                                         PlantedBug::kMeansAnotherSlot,
                                         PlantedBug::kJoinNotTakenBack, PlantedBug::kNotStaged));

}  // namespace
}  // namespace coordd
