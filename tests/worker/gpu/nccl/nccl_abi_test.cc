// What worker/gpu/nccl/nccl_api.h declares, beside the vendor's header: a difference does not
// compile.
#include <gtest/gtest.h>
#include <nccl.h>

#include <cstddef>

#include "tests/worker/support/same_abi.h"
#include "worker/gpu/nccl/nccl_api.h"

namespace coordd {
namespace {

#define EXPECT_SAME(name) \
  static_assert(kSameAbi<decltype(NcclFunctions::name), decltype(&nccl##name)>)
EXPECT_SAME(GetVersion);
EXPECT_SAME(GetErrorString);
EXPECT_SAME(GetLastError);
EXPECT_SAME(GetUniqueId);
EXPECT_SAME(CommInitRankConfig);
EXPECT_SAME(CommFinalize);
EXPECT_SAME(CommSplit);
EXPECT_SAME(CommDestroy);
EXPECT_SAME(CommAbort);
EXPECT_SAME(CommGetAsyncError);
EXPECT_SAME(AllReduce);
EXPECT_SAME(Broadcast);
EXPECT_SAME(Reduce);
EXPECT_SAME(AllGather);
EXPECT_SAME(ReduceScatter);
EXPECT_SAME(Send);
EXPECT_SAME(Recv);
EXPECT_SAME(RedOpCreatePreMulSum);
EXPECT_SAME(RedOpDestroy);
EXPECT_SAME(GroupStart);
EXPECT_SAME(GroupEnd);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 23, 4)
EXPECT_SAME(CommInitRankScalable);
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 19, 1)
EXPECT_SAME(CommRegister);
EXPECT_SAME(CommDeregister);
EXPECT_SAME(MemAlloc);
EXPECT_SAME(MemFree);
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 3)
EXPECT_SAME(CommShrink);
EXPECT_SAME(CommWindowRegister);
EXPECT_SAME(CommWindowDeregister);
static_assert(kNcclWindowSymmetric == NCCL_WIN_COLL_SYMMETRIC);
static_assert(kNcclShrinkDefault == NCCL_SHRINK_DEFAULT);
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 7)
EXPECT_SAME(CommRevoke);
static_assert(kNcclRevokeDefault == NCCL_REVOKE_DEFAULT);
#endif
#undef EXPECT_SAME

// The last four bytes are the traffic class's since 2.26, and were padding before: never more than
// theirs, and none that nobody writes.
static_assert(NcclConfig::kSizeWithoutName == offsetof(NcclConfig, traffic_class) + sizeof(int));
static_assert(NcclConfig::kSizeWithoutName <= sizeof(ncclConfig_t));
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 26, 2)
static_assert(offsetof(NcclConfig, traffic_class) == offsetof(ncclConfig_t, trafficClass));
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 3)
static_assert(sizeof(NcclConfig) <= sizeof(ncclConfig_t));
static_assert(offsetof(NcclConfig, name) == offsetof(ncclConfig_t, commName));
#endif

int Number(NcclResult result) { return static_cast<int>(result); }
int Number(NcclType type) { return static_cast<int>(type); }
int Number(NcclOp op) { return static_cast<int>(op); }

TEST(NcclAbi, TheConfigurationIsAPrefixOfTheVendors) {
  const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  const NcclConfig ours;
  EXPECT_EQ(ours.magic, theirs.magic);
  EXPECT_LE(ours.size, theirs.size);
  EXPECT_EQ(offsetof(NcclConfig, size), offsetof(ncclConfig_t, size));
  EXPECT_EQ(offsetof(NcclConfig, magic), offsetof(ncclConfig_t, magic));
  EXPECT_EQ(offsetof(NcclConfig, version), offsetof(ncclConfig_t, version));
  EXPECT_EQ(offsetof(NcclConfig, blocking), offsetof(ncclConfig_t, blocking));
  EXPECT_EQ(offsetof(NcclConfig, cga_cluster_size), offsetof(ncclConfig_t, cgaClusterSize));
  EXPECT_EQ(offsetof(NcclConfig, min_ctas), offsetof(ncclConfig_t, minCTAs));
  EXPECT_EQ(offsetof(NcclConfig, max_ctas), offsetof(ncclConfig_t, maxCTAs));
  EXPECT_EQ(offsetof(NcclConfig, net_name), offsetof(ncclConfig_t, netName));
  EXPECT_EQ(offsetof(NcclConfig, split_share), offsetof(ncclConfig_t, splitShare));
  EXPECT_EQ(NcclConfig::kUndefined, NCCL_CONFIG_UNDEF_INT);
  EXPECT_EQ(sizeof(NcclUniqueId), sizeof(ncclUniqueId));
}

TEST(NcclAbi, NumbersAreTheVendors) {
  EXPECT_EQ(Number(NcclResult::kSuccess), ncclSuccess);
  EXPECT_EQ(Number(NcclResult::kUnhandledCudaError), ncclUnhandledCudaError);
  EXPECT_EQ(Number(NcclResult::kSystemError), ncclSystemError);
  EXPECT_EQ(Number(NcclResult::kInternalError), ncclInternalError);
  EXPECT_EQ(Number(NcclResult::kInvalidArgument), ncclInvalidArgument);
  EXPECT_EQ(Number(NcclResult::kInvalidUsage), ncclInvalidUsage);
  EXPECT_EQ(Number(NcclResult::kRemoteError), ncclRemoteError);
  EXPECT_EQ(Number(NcclResult::kInProgress), ncclInProgress);
  EXPECT_EQ(Number(NcclType::kInt8), ncclInt8);
  EXPECT_EQ(Number(NcclType::kUint8), ncclUint8);
  EXPECT_EQ(Number(NcclType::kInt32), ncclInt32);
  EXPECT_EQ(Number(NcclType::kUint32), ncclUint32);
  EXPECT_EQ(Number(NcclType::kInt64), ncclInt64);
  EXPECT_EQ(Number(NcclType::kUint64), ncclUint64);
  EXPECT_EQ(Number(NcclType::kFloat16), ncclFloat16);
  EXPECT_EQ(Number(NcclType::kFloat32), ncclFloat32);
  EXPECT_EQ(Number(NcclType::kFloat64), ncclFloat64);
  EXPECT_EQ(Number(NcclType::kBfloat16), ncclBfloat16);
#if NCCL_VERSION_CODE >= 22400
  EXPECT_EQ(Number(NcclType::kFloat8E4m3), ncclFloat8e4m3);
  EXPECT_EQ(Number(NcclType::kFloat8E5m2), ncclFloat8e5m2);
#endif
  EXPECT_EQ(Number(NcclOp::kSum), ncclSum);
  EXPECT_EQ(Number(NcclOp::kProduct), ncclProd);
  EXPECT_EQ(Number(NcclOp::kMax), ncclMax);
  EXPECT_EQ(Number(NcclOp::kMin), ncclMin);
  EXPECT_EQ(Number(NcclOp::kAverage), ncclAvg);
  EXPECT_EQ(kNcclScalarHostImmediate, ncclScalarHostImmediate);
}

}  // namespace
}  // namespace coordd
