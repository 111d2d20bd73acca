// Communicators that launch on the thread that calls.
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

using testing::HasSubstr;

class CommunicatorDirectTest : public NcclBackendTest {
 protected:
  using Made = absl::StatusOr<std::shared_ptr<NcclCommunicator>>;

  CommunicatorDirectTest() {
    for (int32_t rank = 0; rank < 3; ++rank) watchdogs_.emplace_back(Clock::Real(), &gate_);
  }
  ~CommunicatorDirectTest() override {
    made_.clear();
    watchdogs_.clear();
    EXPECT_EQ(FakeNcclLiveCommunicators(), live_);
  }

  std::unique_ptr<CommunicatorMaker> Maker(int32_t rank, int32_t size,
                                           std::optional<ShrinkPlan> shrink = std::nullopt) {
    NcclPlace place;
    place.rank = rank;
    place.size = size;
    place.device = rank;
    CommunicatorMakerOptions options;
    options.direct = true;
    return std::make_unique<CommunicatorMaker>(runtime_, place, store_, Clock::Real(), At(rank),
                                               absl::InfiniteFuture(), options, std::move(shrink));
  }
  std::vector<Made> MakeAll(int32_t size) {
    std::vector<std::unique_ptr<CommunicatorMaker>> makers;
    for (int32_t rank = 0; rank < size; ++rank) makers.push_back(Maker(rank, size));
    std::vector<Made> made;
    for (auto& maker : makers) {
      std::optional<Made> one;
      while (!(one = maker->Take()).has_value()) std::this_thread::yield();
      made.push_back(*std::move(one));
    }
    return made;
  }
  void MakeThree() {
    for (Made& made : MakeAll(3)) {
      ASSERT_TRUE(made.ok()) << made.status();
      made_.push_back(*std::move(made));
    }
  }
  NcclWatchdog& At(int32_t rank) { return watchdogs_[static_cast<size_t>(rank)]; }

  // An allreduce of four bytes, in place. REQUIRES: Prepare.
  absl::Status Allreduce(int32_t rank) {
    const auto at = static_cast<size_t>(rank);
    return made_[at]->Call("ncclAllReduce", [&](NcclComm comm) {
      return runtime_->nccl.functions.AllReduce(memory_[at].data(), memory_[at].data(), 1,
                                                NcclType::kFloat32, NcclOp::kSum, comm,
                                                streams_[at].get());
    });
  }
  // On a thread for each of these ranks; what each has got.
  std::vector<absl::Status> AllreduceOn(int32_t ranks) {
    std::vector<absl::Status> statuses(static_cast<size_t>(ranks));
    std::vector<std::thread> threads;
    for (int32_t rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&, rank] { statuses[static_cast<size_t>(rank)] = Allreduce(rank); });
    for (std::thread& thread : threads) thread.join();
    return statuses;
  }
  void Prepare() {
    DeviceRuntime& device = *runtime_->device;
    for (int32_t at = 0; at < 3; ++at) {
      memory_.push_back(DeviceMemory::Allocate(device, at, sizeof(float)).value());
      streams_.push_back(DeviceStream::Create(device, at).value());
    }
  }

  const long live_ = FakeNcclLiveCommunicators();
  const long split_ = FakeNcclSplitCommunicators();
  std::atomic<uint32_t> gate_ = kGateOpen;
  InMemoryStore store_;
  std::deque<NcclWatchdog> watchdogs_;
  std::vector<std::shared_ptr<NcclCommunicator>> made_;
  std::vector<DeviceMemory> memory_;
  std::vector<DeviceStream> streams_;
};

TEST_F(CommunicatorDirectTest, WhatIsCalledIsOnTheStreamWhenTheCallReturns) {
  SetFakeNccl("call_polls", 1000000);  // of those that are not
  MakeThree();
  EXPECT_EQ(FakeNcclSplitCommunicators() - split_, 3);
  Prepare();
  for (const absl::Status& status : AllreduceOn(3)) EXPECT_TRUE(status.ok()) << status;
  for (const auto& communicator : made_) EXPECT_FALSE(*communicator->Pending());
}

TEST_F(CommunicatorDirectTest, ARetiredOneIsFlushedAndEndsBeforeWhatItWasMadeOf) {
  MakeThree();
  Prepare();
  AllreduceOn(3);
  const long finalized = FakeNcclFinalizedCommunicators();
  for (int32_t rank = 0; rank < 3; ++rank)
    At(rank).Retire(std::move(made_[static_cast<size_t>(rank)]));
  made_.clear();
  watchdogs_.clear();
  EXPECT_EQ(FakeNcclFinalizedCommunicators() - finalized, 6);
  EXPECT_EQ(FakeNcclLiveCommunicators(), live_);
}

// NCCL connects the ranks in their first call; one of them never comes.
TEST_F(CommunicatorDirectTest, ACallThatWaitsForItsPeersKeepsNobodyFromEndingIt) {
  SKIP_WHERE_NCCL_LACKS("ncclCommRevoke");  // it ends once the gate is passed
  MakeThree();
  Prepare();
  absl::Status called;
  std::thread caller([&] { called = Allreduce(0); });
  // Who asks is not kept waiting either.
  while (!*made_[0]->PendingOrInCall()) std::this_thread::yield();
  At(0).SetBusy(true);
  At(0).Fail(absl::AbortedError("rank 2 is lost"));
  caller.join();
  EXPECT_FALSE(called.ok());
  At(0).GatePassed();
  EXPECT_TRUE(At(0).AwaitReleased());
}

TEST_F(CommunicatorDirectTest, WhereItIsRefusedTheErrorNamesTheVariable) {
  SetFakeNccl("split_error", static_cast<int>(NcclResult::kInvalidUsage));
  for (const Made& made : MakeAll(3)) {
    EXPECT_TRUE(absl::IsUnavailable(made.status())) << made.status();
    EXPECT_THAT(made.status().message(), HasSubstr("ncclCommSplit"));
    EXPECT_THAT(made.status().message(), HasSubstr("COORDD_GPU_DIRECT=0"));
  }
}

TEST_F(CommunicatorDirectTest, WhereItFailsLaterTheErrorNamesTheVariable) {
  SetFakeNccl("split_fails", static_cast<int>(NcclResult::kRemoteError));
  for (const Made& made : MakeAll(3)) {
    EXPECT_TRUE(absl::IsUnavailable(made.status())) << made.status();
    EXPECT_THAT(made.status().message(), HasSubstr("COORDD_GPU_DIRECT=0"));
  }
}

TEST_F(CommunicatorDirectTest, AFailureWhileItIsBeingMadeEndsBoth) {
  auto maker = Maker(0, 3);
  // NCCL has begun to connect it, and waits for two ranks that never come.
  while (FakeNcclLiveCommunicators() == live_) std::this_thread::yield();
  At(0).Fail(absl::AbortedError("a rank is lost"));
  std::optional<Made> made;
  while (!(made = maker->Take()).has_value()) std::this_thread::yield();
  EXPECT_FALSE(made->ok());
}

// The next generation's is made of the one whose init has a deadline, and is direct, too.
TEST_F(CommunicatorDirectTest, ItIsShrunkLikeAnyOther) {
  SKIP_WHERE_NCCL_LACKS("ncclCommShrink");
  MakeThree();
  const long shrunk = FakeNcclShrunkCommunicators();
  std::deque<NcclWatchdog> next;
  std::vector<std::unique_ptr<CommunicatorMaker>> makers;
  store_.DeletePrefix("nccl/", absl::InfiniteFuture()).IgnoreError();
  for (int32_t rank = 0; rank < 3; ++rank) {
    At(rank).KeepWhenIdle(made_[static_cast<size_t>(rank)]);
    At(rank).Fail(absl::AbortedError("the generation is over"));
    next.emplace_back(Clock::Real(), &gate_);
  }
  for (const int32_t rank : {0, 2}) {
    ShrinkPlan plan{std::make_unique<KeptCommunicator>(At(rank).TakeKept(), 0, Clock::Real()), {1}};
    NcclPlace place;
    place.rank = rank / 2;
    place.size = 2;
    place.device = rank;
    CommunicatorMakerOptions options;
    options.direct = true;
    makers.push_back(std::make_unique<CommunicatorMaker>(
        runtime_, place, store_, Clock::Real(), next[static_cast<size_t>(rank)],
        absl::InfiniteFuture(), options, std::move(plan)));
  }
  for (auto& maker : makers) {
    std::optional<Made> one;
    while (!(one = maker->Take()).has_value()) std::this_thread::yield();
    ASSERT_TRUE(one->ok()) << one->status();
    EXPECT_FALSE((**one)->IsBeingMade());
  }
  EXPECT_EQ(FakeNcclShrunkCommunicators() - shrunk, 2);
  EXPECT_EQ(FakeNcclSplitCommunicators() - split_, 5);
}

}  // namespace
}  // namespace coordd
