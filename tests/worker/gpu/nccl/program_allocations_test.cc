// What programs have of NCCL's memory.
#include "worker/gpu/nccl/program_allocations.h"

#include <gmock/gmock.h>

#include "tests/support/status_matchers.h"
#include "tests/worker/support/nccl_backend_fixture.h"

namespace coordd {
namespace {

using ::testing::HasSubstr;

class ProgramAllocationsTest : public NcclBackendTest {
 protected:
  ProgramAllocations allocations_{[this] {
    ++opened_;
    return absl::StatusOr<std::shared_ptr<NcclRuntime>>(runtime_);
  }};
  int opened_ = 0;
};

TEST_F(ProgramAllocationsTest, IsMemoryOfTheDeviceUntilItIsFreed) {
  SKIP_WHERE_NCCL_LACKS("ncclMemAlloc");
  EXPECT_EQ(opened_, 0);
  const absl::StatusOr<void*> first = allocations_.Allocate(0, 1000);
  const absl::StatusOr<void*> second = allocations_.Allocate(1, 1);
  ASSERT_THAT(first, IsOk());
  ASSERT_THAT(second, IsOk());
  EXPECT_EQ(opened_, 1);
  {
    const auto scope = DeviceScope::Enter(*runtime_->device, 1);
    EXPECT_EQ(runtime_->device->PlaceOf(*second).device, 1);
  }
  const int64_t size = allocations_.SizeOf(*first);
  EXPECT_GT(size, 0);
  EXPECT_EQ(allocations_.SizeOf(static_cast<std::byte*>(*first) + 1), 0);
  EXPECT_THAT(allocations_.Free(*first), IsOk());
  EXPECT_EQ(allocations_.SizeOf(*first), 0);
  EXPECT_THAT(allocations_.Free(*first),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("freed already")));
  EXPECT_THAT(allocations_.Free(*second), IsOk());
}

TEST_F(ProgramAllocationsTest, SaysWhatIsNotToBeHad) {
  EXPECT_THAT(allocations_.Allocate(0, 0),
              StatusIs(absl::StatusCode::kInvalidArgument, "size_bytes is 0, expected 1 or more"));
  const int32_t count = runtime_->device->device_count();
  EXPECT_THAT(allocations_.Allocate(count, 1),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("is none of this process's, which are 0 to ")));
  SKIP_WHERE_NCCL_LACKS("ncclMemAlloc");
  SetFakeNccl("memory_error", static_cast<long>(NcclResult::kUnhandledCudaError));
  EXPECT_THAT(allocations_.Allocate(0, 4096), StatusIs(absl::StatusCode::kResourceExhausted,
                                                       HasSubstr("ncclMemAlloc of 4096 bytes")));
}

TEST_F(ProgramAllocationsTest, ALibraryBefore219HasNone) {
  ProgramAllocations old([this]() -> absl::StatusOr<std::shared_ptr<NcclRuntime>> {
    auto runtime = std::make_shared<NcclRuntime>(*runtime_);
    runtime->nccl.functions.MemAlloc = nullptr;
    runtime->nccl.version = 21805;
    return runtime;
  });
  EXPECT_THAT(old.Allocate(0, 1),
              StatusIs(absl::StatusCode::kUnimplemented, "NCCL is 2.18.5, expected 2.19 or later"));
}

TEST_F(ProgramAllocationsTest, WithoutADriverEveryCallSaysSo) {
  ProgramAllocations none([this]() -> absl::StatusOr<std::shared_ptr<NcclRuntime>> {
    ++opened_;
    return absl::NotFoundError("no driver");
  });
  for (int i = 0; i < 2; ++i)
    EXPECT_THAT(none.Allocate(0, 1), StatusIs(absl::StatusCode::kNotFound, "no driver"));
  EXPECT_EQ(opened_, 1);
}

}  // namespace
}  // namespace coordd
