#include "worker/gpu/nccl/nccl_api.h"

#include <gmock/gmock.h>

#include <cstdlib>

#include "common/base/dynamic_library.h"
#include "tests/support/gpu/fake_gpu.h"
#include "worker/gpu/nccl/nccl_errors.h"

namespace coordd {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(LoadNccl, TakesTheLibraryThatTheVariableNames) {
  const NcclLibrary library = LoadNccl(FakeNcclEnvironment()).value();
  EXPECT_EQ(library.version, FakeNcclVersion());
  if (library.version >= 22807) {
    EXPECT_THAT(library.missing, IsEmpty());
  }
}

TEST(LoadNccl, NamesWhatAnOlderLibraryLacks) {
  const NcclLibrary library = LoadNccl({{kNcclVariable, FakeOldNcclPath()}}).value();
  EXPECT_EQ(library.version, 21805);
  EXPECT_THAT(library.missing,
              ElementsAre("ncclCommInitRankScalable", "ncclCommRegister", "ncclCommDeregister",
                          "ncclMemAlloc", "ncclMemFree", "ncclCommWindowRegister",
                          "ncclCommWindowDeregister", "ncclCommShrink", "ncclCommRevoke"));
  EXPECT_EQ(library.functions.CommInitRankScalable, nullptr);
}

TEST(LoadNccl, RefusesALibraryThatIsTooOld) {
  const absl::Status status = LoadNccl({{kNcclVariable, FakeAncientNcclPath()}}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_EQ(status.message(), "NCCL is 2.17.1, expected 2.18.0 or later");
}

// A blocking init has no deadline, and nobody can end the thread that is in it.
TEST(LoadNccl, RefusesAnEnvironmentThatMakesCommunicatorsBlocking) {
  Environment environment = FakeNcclEnvironment();
  environment["NCCL_COMM_BLOCKING"] = "0";
  EXPECT_TRUE(LoadNccl(environment).ok());
  environment["NCCL_COMM_BLOCKING"] = "1";
  const absl::Status status = LoadNccl(environment).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("NCCL_COMM_BLOCKING=1"), HasSubstr("expected 0, or unset")));
}

TEST(LoadNccl, WarnsOfAVersionWhoseAbortIsKnownToHang) {
  testing::internal::CaptureStderr();
  EXPECT_TRUE(LoadNccl(FakeNcclEnvironment()).ok());
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  testing::internal::CaptureStderr();
  EXPECT_TRUE(LoadNccl({{kNcclVariable, FakeOldNcclPath()}}).ok());
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("NCCL is 2.18.5"), HasSubstr("expected 2.19.3 or later")));
}

// In a process of its own, since a library is not unloaded.
TEST(LoadNcclDeathTest, WarnsWhereTheProcessHasAnotherLibraryThanTheVariableNames) {
  EXPECT_EXIT(
      {
        if (!DynamicLibrary::Open(FakeLoadedNcclPath()).ok()) std::_Exit(1);
        const auto library = LoadNccl(FakeNcclEnvironment());
        std::_Exit(library.ok() && library->version == 22703 ? 0 : 2);
      },
      testing::ExitedWithCode(0), "COORDD_NCCL_LIBRARY names .*, but .* 2.27.3");
}

TEST(LoadNccl, NamesTheVariableWhenItIsWrong) {
  const absl::Status status = LoadNccl({{kNcclVariable, "/nowhere/libnccl.so.2"}}).status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(kNcclVariable), HasSubstr("/nowhere/libnccl.so.2")));
}

TEST(LoadNccl, NamesWhatAnotherLibraryLacks) {
  const absl::Status status = LoadNccl({{kNcclVariable, FakeCudaPath()}}).status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("ncclGetUniqueId"));
}

TEST(NcclReductionOf, MapsABoolToABytesMaximumAndMinimum) {
  EXPECT_EQ(NcclReductionOf(DataType::kBool, ReduceOp::kSum)->op, NcclOp::kMax);
  EXPECT_EQ(NcclReductionOf(DataType::kBool, ReduceOp::kProduct)->op, NcclOp::kMin);
  EXPECT_EQ(NcclReductionOf(DataType::kBool, ReduceOp::kSum)->type, NcclType::kUint8);
}

TEST(NcclReducesFloat8, SinceAVersionAndOnHopper) {
  EXPECT_EQ(NcclReductionOf(DataType::kFloat8E4m3fn, ReduceOp::kMax)->type, NcclType::kFloat8E4m3);
  EXPECT_EQ(NcclReductionOf(DataType::kFloat8E5m2, ReduceOp::kSum)->type, NcclType::kFloat8E5m2);
  EXPECT_TRUE(NcclReducesFloat8(22403, 9));
  EXPECT_TRUE(NcclReducesFloat8(22809, 10));
  EXPECT_FALSE(NcclReducesFloat8(22304, 9));
  EXPECT_FALSE(NcclReducesFloat8(22809, 8));
}

TEST(NcclReductionOf, HasNoSixteenBitIntegersAndNoAverage) {
  EXPECT_FALSE(NcclReductionOf(DataType::kInt16, ReduceOp::kSum).has_value());
  EXPECT_FALSE(NcclReductionOf(DataType::kUint16, ReduceOp::kMax).has_value());
  EXPECT_FALSE(NcclReductionOf(DataType::kFloat32, ReduceOp::kAverage).has_value());
  EXPECT_EQ(NcclReductionOf(DataType::kBfloat16, ReduceOp::kSum)->type, NcclType::kBfloat16);
}

NcclPlace Place() {
  NcclPlace place;
  place.group = ProcessSetId{2};
  place.rank = 1;
  place.size = 4;
  place.device = 3;
  place.device_uuid = "GPU-1";
  place.nccl_version = "2.28.9";
  place.driver_version = "13.0";
  return place;
}

TEST(NcclErrorText, SaysWhatWhereAndWhatHelps) {
  EXPECT_EQ(NcclErrorText({.call = "ncclCommInitRankConfig",
                           .error = "invalid usage",
                           .detail = "Duplicate GPU detected : rank 1 and rank 0"},
                          Place()),
            "ncclCommInitRankConfig: invalid usage: Duplicate GPU detected : rank 1 and rank 0 "
            "(rank 1 of 4, process set 2, device 3 GPU-1, NCCL 2.28.9, driver 13.0, interfaces: "
            "NCCL's choice): two ranks use one GPU, or MIG slices of one, which NCCL before 2.30 "
            "does not take, under MPS either: give each a GPU of its own (CUDA_VISIBLE_DEVICES or "
            "the local rank)");
}

TEST(NcclErrorText, NamesTheInterfaceAndHasNoHintForTheUnknown) {
  NcclPlace place = Place();
  place.interface = "ib0";
  const std::string text =
      NcclErrorText({.call = "ncclAllReduce", .error = "odd", .detail = ""}, place);
  EXPECT_THAT(text, HasSubstr("ncclAllReduce: odd (rank 1"));
  EXPECT_TRUE(text.ends_with("interfaces: ib0)")) << text;
}

TEST(NcclHint, KnowsTwoRanksOnOneGpuInTheWordsOfAnyVersion) {
  const absl::string_view hint = NcclHint("invalid usage", "Duplicate GPU detected : rank 1");
  EXPECT_THAT(std::string(hint), HasSubstr("two ranks use one GPU"));
  const absl::string_view later = NcclHint("invalid usage",
                                           "Multiple Ranks are using the same GPU/Partition. Set "
                                           "NCCL_MULTI_RANK_GPU_ENABLE=1");
  EXPECT_THAT(std::string(later), HasSubstr("two ranks use one GPU"));
  EXPECT_THAT(std::string(later), HasSubstr("NCCL_MULTI_RANK_GPU_ENABLE=1, best under MPS"));
}

TEST(NcclHint, PrefersTheDetailToTheGeneralSentence) {
  EXPECT_THAT(std::string(NcclHint("unhandled system error", "No space left on device")),
              HasSubstr("/dev/shm"));
  EXPECT_THAT(std::string(NcclHint("unhandled system error", "")), HasSubstr("NCCL_DEBUG"));
}

}  // namespace
}  // namespace coordd
