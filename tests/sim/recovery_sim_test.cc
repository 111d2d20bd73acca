#include "tests/sim/recovery_sim.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sim/sim_seed.h"
#include "tests/support/histories.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

constexpr uint64_t kSeeds = Histories<uint64_t>(400);
// A planted bug is looked for in as many in every build: the search ends where it shows.
constexpr uint64_t kSeedsToNotice = 300;

struct Sums {
  int64_t generations = 0, held = 0, again = 0, scheduled = 0, crashes = 0, changes = 0;
  int64_t found_sets = 0, batches_in_found_sets = 0;
  int64_t named_sets = 0, ended_named_sets = 0, named_after_resume = 0;
  int64_t resumed = 0, over = 0, told_again = 0, suspended = 0, drained = 0, failed = 0,
          evicted = 0, partitions = 0, cuts = 0, parted = 0, newcomers = 0, given = 0, pauses = 0,
          stale = 0, relays = 0;
  int64_t by_slot = 0, by_slot_after_another = 0, by_slot_after_resume = 0;
  int64_t store_writes = 0, store_late = 0, store_seen_again = 0;
};

// All seeds with these faults. The line that runs a seed again is in the failure.
Sums RunAll(const FaultSet& faults) {
  Sums sums;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    RecoverySim sim(seed, RecoveryOptionsOf(seed, faults));
    EXPECT_THAT(sim.Run(), IsOk()) << Replay("recovery", seed, faults);
    if (testing::Test::HasFailure()) return sums;
    sums.generations += sim.generations();
    sums.held += sim.held();
    sums.again += sim.again();
    sums.scheduled += sim.scheduled_batches();
    sums.crashes += sim.crashes();
    sums.changes += sim.changes();
    sums.found_sets += sim.found_sets();
    sums.batches_in_found_sets += sim.batches_in_found_sets();
    sums.named_sets += sim.named_sets();
    sums.ended_named_sets += sim.ended_named_sets();
    sums.named_after_resume += sim.named_after_resume();
    sums.resumed += sim.resumed();
    sums.over += sim.over();
    sums.told_again += sim.told_again();
    sums.suspended += sim.suspended();
    sums.drained += sim.drained();
    sums.failed += sim.failed();
    sums.evicted += sim.evicted();
    sums.partitions += sim.partitions();
    sums.cuts += sim.cuts();
    sums.parted += sim.parted();
    sums.newcomers += sim.newcomers();
    sums.given += sim.given();
    sums.pauses += sim.pauses();
    sums.stale += sim.stale();
    sums.relays += sim.relays();
    sums.by_slot += sim.by_slot();
    sums.by_slot_after_another += sim.by_slot_after_another();
    sums.by_slot_after_resume += sim.by_slot_after_resume();
    sums.store_writes += sim.store().acknowledged();
    sums.store_late += sim.store().late();
    sums.store_seen_again += sim.store().seen_again();
  }
  return sums;
}

// What the sums must be at least is that they got anywhere at all.

TEST(RecoverySim, SurvivorsGetEveryResultOnceAndTheSame) {
  const Sums sums = RunAll({Fault::kKill});
  EXPECT_GT(sums.generations, static_cast<int64_t>(3 * kSeeds / 2));
  EXPECT_GT(sums.failed, static_cast<int64_t>(kSeeds / 5));
  EXPECT_GT(sums.held, static_cast<int64_t>(kSeeds / 15));
  EXPECT_GT(sums.again, static_cast<int64_t>(2 * kSeeds / 3));
  EXPECT_GT(sums.scheduled, static_cast<int64_t>(10 * kSeeds / 3));
  EXPECT_GT(sums.found_sets, static_cast<int64_t>(kSeeds));
  EXPECT_GT(sums.batches_in_found_sets, static_cast<int64_t>(kSeeds / 4));
  EXPECT_GT(sums.named_sets, static_cast<int64_t>(kSeeds));
  EXPECT_GT(sums.ended_named_sets, static_cast<int64_t>(kSeeds / 2));
  EXPECT_GT(sums.by_slot, static_cast<int64_t>(4 * kSeeds));
  EXPECT_GT(sums.by_slot_after_another, static_cast<int64_t>(kSeeds));
}

TEST(RecoverySim, CoorddMayDieWhileTheyDoSo) {
  const Sums sums = RunAll({Fault::kKill, Fault::kRestart});
  EXPECT_GT(sums.crashes, static_cast<int64_t>(kSeeds));
  EXPECT_GT(sums.resumed, static_cast<int64_t>(kSeeds / 2));
  EXPECT_GT(sums.over, static_cast<int64_t>(kSeeds / 3));
  EXPECT_GT(sums.told_again, static_cast<int64_t>(kSeeds / 10));
  EXPECT_GT(sums.by_slot_after_resume, static_cast<int64_t>(kSeeds));
  EXPECT_GT(sums.store_writes, static_cast<int64_t>(10 * kSeeds));
  EXPECT_GT(sums.store_late, 0);
  EXPECT_GT(sums.store_seen_again, static_cast<int64_t>(kSeeds));
  EXPECT_GT(sums.held, static_cast<int64_t>(kSeeds / 30));
  EXPECT_GT(sums.batches_in_found_sets, static_cast<int64_t>(kSeeds / 4));
  EXPECT_GT(sums.named_after_resume, static_cast<int64_t>(kSeeds / 4));
}

TEST(RecoverySim, MembersMayChangeWhileCoorddDies) {
  const Sums sums = RunAll({Fault::kKill, Fault::kRestart, Fault::kChange});
  EXPECT_GT(sums.changes, static_cast<int64_t>(kSeeds));
  EXPECT_GT(sums.crashes, static_cast<int64_t>(kSeeds / 2));
  EXPECT_GT(sums.generations, static_cast<int64_t>(2 * kSeeds));
}

TEST(RecoverySim, CoorddMaySleepAndDie) {
  const Sums sums = RunAll({Fault::kKill, Fault::kRestart, Fault::kSleep, Fault::kChange});
  EXPECT_GT(sums.suspended, static_cast<int64_t>(kSeeds / 2));
  EXPECT_GT(sums.resumed, static_cast<int64_t>(kSeeds));
  EXPECT_GT(sums.crashes, static_cast<int64_t>(kSeeds / 4));
}

TEST(RecoverySim, TheEndOfARelayIsNobodysLossWhoeverDiesBesides) {
  const Sums alone = RunAll({Fault::kRelay});
  EXPECT_GT(alone.relays, static_cast<int64_t>(kSeeds));
  EXPECT_GT(alone.suspended, static_cast<int64_t>(kSeeds / 2));
  EXPECT_EQ(alone.generations, static_cast<int64_t>(kSeeds));
  const Sums sums = RunAll({Fault::kRelay, Fault::kKill, Fault::kRestart, Fault::kChange});
  EXPECT_GT(sums.relays, static_cast<int64_t>(kSeeds / 2));
  EXPECT_GT(sums.resumed, static_cast<int64_t>(kSeeds));
}

TEST(RecoverySim, WhoIsToLeaveDoesAtAnyMomentAndNobodyElseIsConcerned) {
  const Sums sums =
      RunAll({Fault::kKill, Fault::kRestart, Fault::kChange, Fault::kDrain, Fault::kEvict});
  EXPECT_GT(sums.drained, static_cast<int64_t>(kSeeds / 2));
  EXPECT_GT(sums.evicted, static_cast<int64_t>(kSeeds / 10));
  EXPECT_GT(sums.crashes, static_cast<int64_t>(kSeeds / 2));
  EXPECT_GT(sums.generations, static_cast<int64_t>(2 * kSeeds));
}

TEST(RecoverySim, OfTwoThatDoNotReachEachOtherOneHasToGoAndNobodyElse) {
  const Sums sums = RunAll({Fault::kCut});
  EXPECT_GT(sums.cuts, static_cast<int64_t>(kSeeds));
  EXPECT_GT(sums.parted, static_cast<int64_t>(kSeeds / 2));
}

TEST(RecoverySim, LinksMayBeCutWhileOthersDieAndCoorddToo) {
  const Sums sums = RunAll({Fault::kKill, Fault::kRestart, Fault::kCut});
  EXPECT_GT(sums.parted, static_cast<int64_t>(kSeeds / 4));
  EXPECT_GT(sums.crashes, static_cast<int64_t>(kSeeds / 2));
}

// In these a worker without a link comes back once its generation is over since another was parted
// with, and hears so.
TEST(RecoverySim, WhoComesBackTooLateHearsWhyHisGenerationEnded) {
  for (uint64_t seed : {61385, 97331}) {
    RecoverySim sim(seed, RecoveryOptionsOf(seed, AllFaults()));
    EXPECT_THAT(sim.Run(), IsOk()) << Replay("recovery", seed, AllFaults());
    EXPECT_EQ(sim.parted(), 1);
  }
}

TEST(RecoverySim, CoorddMaySleepAtAnyMomentOfAChangeOfMembers) {
  const Sums sums = RunAll(AllFaults());
  EXPECT_GT(sums.suspended, static_cast<int64_t>(kSeeds / 2));
  EXPECT_GT(sums.over, static_cast<int64_t>(kSeeds / 4));
  EXPECT_GT(sums.drained, static_cast<int64_t>(kSeeds / 4));
  EXPECT_GT(sums.evicted, static_cast<int64_t>(kSeeds / 10));
}

TEST(RecoverySim, WhoIsCutOffComesBackOrIsGone) {
  const Sums sums = RunAll({Fault::kKill, Fault::kRestart, Fault::kPartition});
  EXPECT_GT(sums.partitions, static_cast<int64_t>(kSeeds / 2));
  EXPECT_GT(sums.suspended, static_cast<int64_t>(kSeeds / 60));
  EXPECT_GT(sums.evicted, static_cast<int64_t>(kSeeds / 10));
  EXPECT_GT(sums.resumed, static_cast<int64_t>(kSeeds / 2));
}

TEST(RecoverySim, NewcomersAreLetInAtACommitAndHaveTheStateOfAll) {
  const Sums sums = RunAll({Fault::kKill, Fault::kNewcomers});
  EXPECT_GT(sums.newcomers, static_cast<int64_t>(kSeeds));
  EXPECT_GT(sums.given, static_cast<int64_t>(kSeeds / 2));
}

TEST(RecoverySim, NewcomersAreLetInWhateverHappens) {
  const Sums sums = RunAll({Fault::kKill, Fault::kRestart, Fault::kSleep, Fault::kChange,
                            Fault::kDrain, Fault::kNewcomers});
  EXPECT_GT(sums.given, static_cast<int64_t>(kSeeds / 2));
  EXPECT_GT(sums.crashes, static_cast<int64_t>(kSeeds / 2));
  EXPECT_GT(sums.drained, static_cast<int64_t>(kSeeds / 4));
}

TEST(RecoverySim, WhoHasBeenStillGoesOnOrIsGone) {
  const Sums sums = RunAll({Fault::kKill, Fault::kRestart, Fault::kPause});
  EXPECT_GT(sums.pauses, static_cast<int64_t>(kSeeds / 2));
  EXPECT_GT(sums.evicted, static_cast<int64_t>(kSeeds / 10));
}

TEST(RecoverySim, WhatComesOnAStreamThatWasGivenUpIsRefused) {
  const Sums sums = RunAll({Fault::kKill, Fault::kRestart, Fault::kSleep, Fault::kPartition,
                            Fault::kPause, Fault::kStale});
  EXPECT_GT(sums.stale, static_cast<int64_t>(kSeeds));
}

// Whether one of the seeds notices the mistake.
bool Noticed(RecoveryBug bug, int32_t crashes = 0, int32_t changes = 0, int32_t drains = 0) {
  for (uint64_t seed = 1; seed <= kSeedsToNotice; ++seed) {
    RecoverySimOptions options;
    options.kills = 2;
    options.crashes = crashes;
    options.changes = changes;
    options.drains = drains;
    options.bug = bug;
    if (!RecoverySim(seed, options).Run().ok()) return true;
  }
  return false;
}

TEST(RecoverySim, NoticesASurvivorThatSkipsARepair) {
  EXPECT_TRUE(Noticed(RecoveryBug::kSkipsRepair));
}

TEST(RecoverySim, NoticesARepairPlanThatDiesWithCoordd) {
  EXPECT_TRUE(Noticed(RecoveryBug::kPlanIsNotStored, /*crashes=*/2));
}

TEST(RecoverySim, NoticesAChangeOfMembersThatIsNotAskedForAgain) {
  EXPECT_TRUE(Noticed(RecoveryBug::kChangeNotAskedAgain, /*crashes=*/2, /*changes=*/2));
}

TEST(RecoverySim, NoticesADrainThatDiesWithCoordd) {
  EXPECT_TRUE(Noticed(RecoveryBug::kDrainNotStored, /*crashes=*/2, /*changes=*/0, /*drains=*/2));
}

TEST(RecoverySim, NoticesProcessSetsThatDieWithCoordd) {
  EXPECT_TRUE(Noticed(RecoveryBug::kSetsNotStored, /*crashes=*/2, /*changes=*/1));
}

// Likewise, with these faults.
bool Noticed(RecoveryBug bug, const FaultSet& faults) {
  for (uint64_t seed = 1; seed <= kSeedsToNotice; ++seed) {
    RecoverySimOptions options = RecoveryOptionsOf(seed, faults);
    options.bug = bug;
    if (!RecoverySim(seed, options).Run().ok()) return true;
  }
  return false;
}

TEST(RecoverySim, NoticesNewcomersThatAreLetInAtDifferentCommits) {
  EXPECT_TRUE(Noticed(RecoveryBug::kNewcomersApart, {Fault::kNewcomers}));
}

TEST(RecoverySim, NoticesARankThatDoesNotTakePartInGivingTheState) {
  EXPECT_TRUE(Noticed(RecoveryBug::kSyncSkipped, {Fault::kNewcomers}));
}

TEST(RecoverySim, NoticesAStateThatIsTakenFromANewcomer) {
  EXPECT_TRUE(Noticed(RecoveryBug::kNewcomerGives, {Fault::kNewcomers}));
}

// It takes a loss between the result of a commit on one rank and on another.
TEST(RecoverySim, NoticesAChangeThatAnotherGenerationHasAgreedTo) {
  bool noticed = false;
  for (uint64_t seed = 1; !noticed && seed <= kSeedsToNotice * 10; ++seed) {
    RecoverySimOptions options;
    options.workers = 5;
    options.kills = options.changes = 3;
    options.newcomers = options.tensors = 1;
    options.bug = RecoveryBug::kChangeOfAnyGeneration;
    noticed = !RecoverySim(seed, options).Run().ok();
  }
  EXPECT_TRUE(noticed);
}

TEST(RecoverySim, NoticesAWorkerThatListensToAStreamThatItHasGivenUp) {
  EXPECT_TRUE(Noticed(RecoveryBug::kStaleIsTaken, {Fault::kSleep, Fault::kStale}));
}

TEST(RecoverySim, NoticesAWriteWithoutItsVersion) {
  EXPECT_TRUE(Noticed(RecoveryBug::kVersionsNotReported, {Fault::kRestart}));
}

TEST(RecoverySim, NoticesAnAnswerOfTheStoreThatWasLostWithCoordd) {
  EXPECT_TRUE(Noticed(RecoveryBug::kLateAnswerCounts, {Fault::kRestart}));
}

TEST(RecoverySim, NoticesADiskThatAnswersBeforeItHasWritten) {
  EXPECT_TRUE(Noticed(RecoveryBug::kAnsweredBeforeStored, {Fault::kRestart}));
}

TEST(RecoverySim, NoticesABitThatIsKeptOverAGeneration) {
  EXPECT_TRUE(Noticed(RecoveryBug::kBitKeptOverGeneration));
}

TEST(RecoverySim, NoticesABufferThatIsReusedTooEarly) {
  EXPECT_TRUE(Noticed(RecoveryBug::kBufferReusedTooEarly));
}

}  // namespace
}  // namespace coordd
