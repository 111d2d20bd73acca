// Symmetric windows of programs' memory, over the fake libraries, which check what NCCL takes for
// granted: one size on all ranks, memory of ncclMemAlloc, equal places.
#include <gmock/gmock.h>

#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "tests/support/status_matchers.h"
#include "tests/worker/support/nccl_backend_fixture.h"
#include "worker/gpu/nccl/known_memory.h"
#include "worker/gpu/nccl/program_allocations.h"
#include "worker/gpu/nccl/program_memory.h"

namespace coordd {
namespace {

using ::testing::HasSubstr;

class ProgramWindowsTest : public NcclBackendTest {
 protected:
  using Region = absl::Span<std::byte>;

  std::shared_ptr<NcclMemory> NewMemory(const Context& context, int64_t bytes) {
    return NcclMemory::Allocate(runtime_, context.object.device(), bytes).value();
  }
  // A batch before which all ranks make it a window, and at which they register it.
  static absl::Status Register(Context& context, Tensor& marker, Region memory,
                               std::vector<Region> windows) {
    CollectiveArgs args = Sum(marker);
    args.windows = std::move(windows);
    args.before = [&context, memory](DeviceKernels&, CudaStream) {
      return context.object.RegisterMemory(ProcessSetId{0}, memory);
    };
    return RunOne(context, std::move(args));
  }
  static void Release(Context& context, Region memory) {
    bool released = false;
    context.object.ReleaseMemory(ProcessSetId{0}, memory, [&] { released = true; });
    EXPECT_TRUE(released);  // nothing was on the device
  }
};

TEST_F(ProgramWindowsTest, MemoryBecomesAWindowBesideTheFusionBufferAndIsReleasedBeforeItIsFreed) {
  SKIP_WHERE_NCCL_LACKS("ncclCommWindowRegister");
  window_bytes_ = 1 << 20;
  const long windows = FakeNcclWindows(), registered = FakeNcclRegisteredBuffers();
  RunTwo([&](Context& context) {
    context.object.UseWindow(ProcessSetId{0});
    Tensor tensor = NewTensor(context, 10, 1.0f);
    auto first = NewMemory(context, 4096);
    const auto second = NewMemory(context, 8192);
    // The first batch of all, so the buffer is made one before.
    ASSERT_EQ(Register(context, tensor, first->span(), {first->span()}), absl::OkStatus());
    EXPECT_EQ(context.object.registered_bytes(), window_bytes_ + 4096);
    ASSERT_EQ(Register(context, tensor, second->span(), {second->span()}), absl::OkStatus());
    Release(context, first->span());
    EXPECT_EQ(context.object.registered_bytes(), window_bytes_ + 8192);
    first = nullptr;
    // Where the first one was.
    first = NewMemory(context, 4096);
    ASSERT_EQ(Register(context, tensor, first->span(), {first->span()}), absl::OkStatus());
    Release(context, second->span());
    Release(context, first->span());
    EXPECT_EQ(context.object.registered_bytes(), window_bytes_);
    ASSERT_EQ(RunOne(context, Sum(tensor)), absl::OkStatus());
  });
  EXPECT_EQ(FakeNcclWindows(), windows + 2 * 4);
  EXPECT_EQ(FakeNcclRegisteredBuffers(), registered);
}

TEST_F(ProgramWindowsTest, MemoryThatACommunicatorKnowsIsNotFreed) {
  SKIP_WHERE_NCCL_LACKS("ncclCommRegister");
  SKIP_WHERE_NCCL_LACKS("ncclMemAlloc");
  ProgramAllocations allocations([this] { return runtime_; });
  RunTwo([&](Context& context) {
    Tensor tensor = NewTensor(context, 10, 1.0f);
    void* const begin = allocations.Allocate(context.object.device(), 8192).value();
    const Region memory(static_cast<std::byte*>(begin), 4096);
    ASSERT_EQ(Register(context, tensor, memory, {}), absl::OkStatus());
    EXPECT_THAT(allocations.Free(begin), StatusIs(absl::StatusCode::kFailedPrecondition,
                                                  HasSubstr("registered in process set 0")));
    EXPECT_GT(allocations.SizeOf(begin), 0);
    Release(context, memory);
    EXPECT_THAT(allocations.Free(begin), IsOk());
  });
}

TEST_F(ProgramWindowsTest, WhereCommunicatorsEndMemoryIsFreedBehindThem) {
  SKIP_WHERE_NCCL_LACKS("ncclCommRegister");
  SKIP_WHERE_NCCL_LACKS("ncclMemAlloc");
  ProgramAllocations allocations([this] { return runtime_; });
  RunTwo([&](Context& context) {
    Tensor tensor = NewTensor(context, 10, 1.0f);
    void* const begin = allocations.Allocate(context.object.device(), 4096).value();
    const Region memory(static_cast<std::byte*>(begin), 4096);
    ASSERT_EQ(Register(context, tensor, memory, {}), absl::OkStatus());
    context.object.Abort();
    context.object.PassGate();
    const auto kept = context.object.TakeKept();  // where NCCL can shrink it
    EXPECT_THAT(allocations.Free(begin), IsOk());
    EXPECT_FALSE(KnownMemory::OfProcess().Knows(ProcessSetId{0}, memory));
  });
}

TEST_F(ProgramWindowsTest, SeveralOfOneBatchAreMadeOneBehindTheOther) {
  SKIP_WHERE_NCCL_LACKS("ncclCommWindowRegister");
  const long windows = FakeNcclWindows();
  RunTwo([&](Context& context) {
    Tensor tensor = NewTensor(context, 10, 1.0f);
    const auto first = NewMemory(context, 4096), second = NewMemory(context, 8192);
    CollectiveArgs args = Sum(tensor);
    args.windows = {first->span(), second->span()};
    args.before = [&](DeviceKernels&, CudaStream) -> absl::Status {
      COORDD_RETURN_IF_ERROR(context.object.RegisterMemory(ProcessSetId{0}, first->span()));
      return context.object.RegisterMemory(ProcessSetId{0}, second->span());
    };
    ASSERT_EQ(RunOne(context, std::move(args)), absl::OkStatus());
    EXPECT_EQ(tensor.values()[9], 2.0f);
    Release(context, first->span());
    Release(context, second->span());
  });
  EXPECT_EQ(FakeNcclWindows(), windows + 2 * 2);
}

TEST_F(ProgramWindowsTest, WithoutSymmetricMemoryBetweenTheRanksItIsRegisteredAlone) {
  SKIP_WHERE_NCCL_LACKS("ncclCommWindowRegister");
  SetFakeNccl("no_windows", 1);
  const long windows = FakeNcclWindows(), registered = FakeNcclRegisteredBuffers();
  RunTwo([&](Context& context) {
    Tensor tensor = NewTensor(context, 10, 1.0f);
    const auto memory = NewMemory(context, 4096);
    ASSERT_EQ(Register(context, tensor, memory->span(), {memory->span()}), absl::OkStatus());
    EXPECT_EQ(context.object.registered_bytes(), 4096);
    Release(context, memory->span());
    EXPECT_EQ(context.object.registered_bytes(), 0);
  });
  EXPECT_EQ(FakeNcclWindows(), windows);
  EXPECT_EQ(FakeNcclRegisteredBuffers(), registered + 2);
}

TEST_F(ProgramWindowsTest, ARankThatDoesNotComeToItEndsTheDataPlaneByItsDeadline) {
  SKIP_WHERE_NCCL_LACKS("ncclCommWindowRegister");
  options_.init_limit = absl::Seconds(1);
  RunTwo([&](Context& context) {
    Tensor tensor = NewTensor(context, 10, 1.0f);
    const auto memory = NewMemory(context, 4096);
    if (context.rank == Rank{0}) {
      const absl::Status status = Register(context, tensor, memory->span(), {memory->span()});
      EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
      over_ = true;
      return;
    }
    std::optional<absl::Status> ended;
    ASSERT_TRUE(
        context.object.Launch(Sum(tensor), [&](absl::Status s) { ended = std::move(s); }).ok());
    context.DriveUntil([&] { return over_.load(); });
    context.object.Abort();
    context.DriveUntil([&] { return ended.has_value(); });
    EXPECT_FALSE(ended->ok());
    context.object.PassGate();  // its memory goes
  });
}

// What NCCL would not notice the stand-in does, so that no other test can break it unseen.
class BrokenWindowsTest : public ProgramWindowsTest {
 protected:
  // It stays until the communicators have ended.
  NcclMemory& KeptMemory(const Context& context, int64_t bytes) {
    auto memory = NewMemory(context, bytes);
    MutexLock lock(&mu_);
    memory_.push_back(std::move(memory));
    return *memory_.back();
  }
  // Each rank makes what it is given a window, behind which both fail.
  void ExpectRule(const std::string& rule,
                  const std::function<Region(Context&, NcclMemory& large)>& region,
                  int64_t large_of_1 = 8192) {
    TakeBrokenNcclRule();
    RunTwo([&](Context& context) {
      Tensor tensor = NewTensor(context, 10, 1.0f);
      NcclMemory& large = KeptMemory(context, context.rank == Rank{1} ? large_of_1 : 8192);
      const Region window = region(context, large);
      EXPECT_FALSE(Register(context, tensor, window, {window}).ok());
      context.object.PassGate();
    });
    EXPECT_THAT(TakeBrokenNcclRule(), ::testing::HasSubstr(rule));
  }

 private:
  Mutex mu_;
  std::vector<std::shared_ptr<NcclMemory>> memory_ ABSL_GUARDED_BY(mu_);
};

TEST_F(BrokenWindowsTest, OfDifferentSizes) {
  SKIP_WHERE_NCCL_LACKS("ncclCommWindowRegister");
  ExpectRule("a window of different sizes", [](Context& context, NcclMemory& large) {
    return large.span().subspan(0, context.rank == Rank{1} ? 4096 : 8192);
  });
}

TEST_F(BrokenWindowsTest, InAllocationsOfDifferentSizes) {
  SKIP_WHERE_NCCL_LACKS("ncclCommWindowRegister");
  ExpectRule(
      "a window of memory of different sizes",
      [](Context&, NcclMemory& large) { return large.span().subspan(0, 4096); }, 4096);
}

TEST_F(BrokenWindowsTest, AtDifferentPlacesInThem) {
  SKIP_WHERE_NCCL_LACKS("ncclCommWindowRegister");
  ExpectRule("a window at different places", [](Context& context, NcclMemory& large) {
    return large.span().subspan(context.rank == Rank{1} ? 4096 : 0, 4096);
  });
}

TEST_F(BrokenWindowsTest, BehindOnesOfWhichOneRankHasLetGo) {
  SKIP_WHERE_NCCL_LACKS("ncclCommWindowRegister");
  if (FakeNcclVersion() < 22800) GTEST_SKIP() << "2.27 takes no place twice";
  RunTwo([&](Context& context) {
    Tensor tensor = NewTensor(context, 10, 1.0f);
    const Region first = KeptMemory(context, 4096).span(),
                 second = KeptMemory(context, 4096).span();
    ASSERT_EQ(Register(context, tensor, first, {first}), absl::OkStatus());
    if (context.rank == Rank{1}) Release(context, first);
    EXPECT_FALSE(Register(context, tensor, second, {second}).ok());
    context.object.PassGate();
  });
  EXPECT_THAT(TakeBrokenNcclRule(), ::testing::HasSubstr("ranks have deregistered different ones"));
}

}  // namespace
}  // namespace coordd
