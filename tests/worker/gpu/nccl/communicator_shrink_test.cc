// The next generation's communicator, made of the last one's.
#include <gmock/gmock.h>

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/protocol/store_memory.h"
#include "tests/worker/support/nccl_backend_fixture.h"
#include "worker/gpu/nccl/communicator_maker.h"

namespace coordd {
namespace {

// Three survivors of four ranks: rank 1 is gone, and its communicator with it.
class CommunicatorShrinkTest : public NcclBackendTest {
 protected:
  using Made = absl::StatusOr<std::shared_ptr<NcclCommunicator>>;

  CommunicatorShrinkTest() {
    for (int32_t rank = 0; rank < 4; ++rank) watchdogs_.emplace_back(Clock::Real(), &gate_);
  }
  void SetUp() override { SKIP_WHERE_NCCL_LACKS("ncclCommShrink"); }
  ~CommunicatorShrinkTest() override {
    old_.clear();
    next_watchdogs_.clear();
    watchdogs_.clear();
    EXPECT_EQ(FakeNcclLiveCommunicators(), live_);
  }

  NcclPlace Place(int32_t rank, int32_t size, int32_t device) {
    NcclPlace place;
    place.rank = rank;
    place.size = size;
    place.device = device;
    return place;
  }
  static std::vector<Made> TakeAll(std::vector<std::unique_ptr<CommunicatorMaker>>& makers) {
    std::vector<Made> made;
    for (auto& maker : makers) {
      std::optional<Made> one;
      while (!(one = maker->Take()).has_value()) std::this_thread::yield();
      made.push_back(*std::move(one));
    }
    return made;
  }
  // Four ranks, of which the watchdogs keep their communicators.
  void MakeOld() {
    InMemoryStore store;
    std::vector<std::unique_ptr<CommunicatorMaker>> makers;
    for (int32_t rank = 0; rank < 4; ++rank) {
      makers.push_back(std::make_unique<CommunicatorMaker>(
          runtime_, Place(rank, 4, rank), store, Clock::Real(), At(rank), absl::InfiniteFuture()));
    }
    for (Made& made : TakeAll(makers)) {
      ASSERT_TRUE(made.ok()) << made.status();
      At(static_cast<int32_t>(old_.size())).KeepWhenIdle(*made);
      old_.push_back(*std::move(made));
    }
  }
  std::unique_ptr<KeptCommunicator> Keep(int32_t rank) {
    At(rank).Fail(absl::AbortedError("the generation is over"));
    std::shared_ptr<NcclCommunicator> kept = At(rank).TakeKept();
    EXPECT_EQ(kept, old_[static_cast<size_t>(rank)]);
    return std::make_unique<KeptCommunicator>(std::move(kept), 0, Clock::Real());
  }
  // What the survivors get; `lost`: this one of them has no communicator to shrink any more.
  std::vector<Made> MakeNext(int32_t lost = -1, CommunicatorMakerOptions options = {}) {
    const std::vector<int32_t> survivors = {0, 2, 3};
    std::vector<std::unique_ptr<CommunicatorMaker>> makers;
    next_watchdogs_.clear();
    for (size_t i = 0; i < survivors.size(); ++i)
      next_watchdogs_.emplace_back(Clock::Real(), &gate_);
    for (size_t i = 0; i < survivors.size(); ++i) {
      const int32_t rank = survivors[i];
      ShrinkPlan plan{Keep(rank), {1}};
      if (rank == lost) plan.from.reset();
      makers.push_back(std::make_unique<CommunicatorMaker>(
          runtime_, Place(static_cast<int32_t>(i), 3, rank), store_, Clock::Real(),
          next_watchdogs_[i], absl::InfiniteFuture(), options, std::move(plan)));
    }
    return TakeAll(makers);
  }
  // All three have one, made by ncclCommShrink or not, and nothing else is left of the old ones.
  void ExpectNext(const std::vector<Made>& made, bool shrunk) {
    for (const Made& one : made) {
      ASSERT_TRUE(one.ok()) << one.status();
      EXPECT_FALSE((*one)->IsBeingMade());
    }
    EXPECT_EQ(FakeNcclShrunkCommunicators() - shrunk_, shrunk ? 3 : 0);
    EXPECT_EQ(*store_.Get("nccl/0/shrink", absl::InfinitePast()), shrunk ? "yes" : "no");
  }
  NcclWatchdog& At(int32_t rank) { return watchdogs_[static_cast<size_t>(rank)]; }

  const long live_ = FakeNcclLiveCommunicators();
  const long shrunk_ = FakeNcclShrunkCommunicators();
  std::atomic<uint32_t> gate_ = kGateOpen;
  InMemoryStore store_;
  std::vector<std::shared_ptr<NcclCommunicator>> old_;
  std::deque<NcclWatchdog> watchdogs_, next_watchdogs_;
};

TEST_F(CommunicatorShrinkTest, SurvivorsShrinkTheirs) {
  MakeOld();
  ExpectNext(MakeNext(), /*shrunk=*/true);
}

TEST_F(CommunicatorShrinkTest, ASlowOneIsWaitedFor) {
  SetFakeNccl("shrink_polls", 40);
  MakeOld();
  ExpectNext(MakeNext(), /*shrunk=*/true);
}

TEST_F(CommunicatorShrinkTest, WhereItIsRefusedAllMakeANewOne) {
  SetFakeNccl("shrink_error", static_cast<int>(NcclResult::kInvalidUsage));
  MakeOld();
  ExpectNext(MakeNext(), /*shrunk=*/false);
}

TEST_F(CommunicatorShrinkTest, WhereItFailsLaterAllMakeANewOne) {
  SetFakeNccl("shrink_fails", static_cast<int>(NcclResult::kRemoteError));
  MakeOld();
  ExpectNext(MakeNext(), /*shrunk=*/false);
}

TEST_F(CommunicatorShrinkTest, OneThatHangsIsGivenUpByAll) {
  SetFakeNccl("shrink_never", 1);
  MakeOld();
  ExpectNext(MakeNext(-1, {.shrink_limit = absl::Milliseconds(50)}), /*shrunk=*/false);
}

// The others are in ncclCommShrink and would wait for it there.
TEST_F(CommunicatorShrinkTest, WhereOneRankCannotTheOthersGiveUpWithoutWaitingForTheLimit) {
  MakeOld();
  ExpectNext(MakeNext(2, {.shrink_limit = absl::InfiniteDuration()}), /*shrunk=*/false);
}

// Of the ranks that are to shrink theirs one is lost: the generation ends, by others.
TEST_F(CommunicatorShrinkTest, AnEndOfTheGenerationEndsIt) {
  MakeOld();
  NcclWatchdog watchdog(Clock::Real(), &gate_);
  CommunicatorMaker maker(runtime_, Place(0, 3, 0), store_, Clock::Real(), watchdog,
                          absl::InfiniteFuture(), {.shrink_limit = absl::InfiniteDuration()},
                          ShrinkPlan{Keep(0), {1}});
  ASSERT_TRUE(store_.Get("nccl/0/arrived", absl::InfiniteFuture()).ok());
  watchdog.Fail(absl::AbortedError("a rank is lost"));
}

TEST_F(CommunicatorShrinkTest, WhatIsBusyIsNotKept) {
  MakeOld();
  At(0).SetBusy(true);
  At(0).Fail(absl::AbortedError("the generation is over"));
  EXPECT_EQ(At(0).TakeKept(), nullptr);
  EXPECT_TRUE(At(0).AwaitReleased());
  gate_ = kGateOpen;
}

TEST_F(CommunicatorShrinkTest, OneThatNobodyTakesEndsWithItsOwner) {
  MakeOld();
  old_[0].reset();
  const long before = FakeNcclLiveCommunicators();
  At(0).Fail(absl::AbortedError("the generation is over"));
  KeptCommunicator(At(0).TakeKept(), 0, Clock::Real());
  EXPECT_EQ(FakeNcclLiveCommunicators(), before - 1);
}

// The stand-in's own rules, by which it looks after ours.
TEST_F(CommunicatorShrinkTest, TheStandInNamesARankThatIsExcludedAndCalls) {
  MakeOld();
  const auto begun = NcclCommunicator::BeginShrink(old_[1], Place(0, 3, 1), {1});
  EXPECT_TRUE(absl::IsUnavailable(begun.status())) << begun.status();
  EXPECT_EQ(TakeBrokenNcclRule(), "ncclCommShrink by a rank that is excluded");
}

}  // namespace
}  // namespace coordd
