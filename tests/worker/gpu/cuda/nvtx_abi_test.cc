// What worker/gpu/cuda/nvtx.h declares, beside the vendor's header: a difference does not compile.
#include "worker/gpu/cuda/nvtx.h"

#include <gtest/gtest.h>
#include <nvtx3/nvToolsExt.h>

#include <cstddef>

#include "tests/worker/support/same_abi.h"

namespace coordd {
namespace {

static_assert(sizeof(NvtxEvent) == sizeof(nvtxEventAttributes_t));
#define EXPECT_SAME_PLACE(ours, theirs) \
  static_assert(offsetof(NvtxEvent, ours) == offsetof(nvtxEventAttributes_t, theirs))
EXPECT_SAME_PLACE(version, version);
EXPECT_SAME_PLACE(size, size);
EXPECT_SAME_PLACE(category, category);
EXPECT_SAME_PLACE(color_type, colorType);
EXPECT_SAME_PLACE(color, color);
EXPECT_SAME_PLACE(payload_type, payloadType);
EXPECT_SAME_PLACE(payload, payload);
EXPECT_SAME_PLACE(message_type, messageType);
EXPECT_SAME_PLACE(message, message);
#undef EXPECT_SAME_PLACE
static_assert(sizeof(NvtxCallbacks) == sizeof(NvtxExportTableCallbacks));
static_assert(offsetof(NvtxCallbacks, get_table) ==
              offsetof(NvtxExportTableCallbacks, GetModuleFunctionTable));
static_assert(sizeof(NvtxVersion) == sizeof(NvtxExportTableVersionInfo));
static_assert(offsetof(NvtxVersion, version) == offsetof(NvtxExportTableVersionInfo, version));
static_assert(offsetof(NvtxVersion, set_injection_version) ==
              offsetof(NvtxExportTableVersionInfo, SetInjectionNvtxVersion));

static_assert(kSameAbi<NvtxRangePushFunction*, nvtxDomainRangePushEx_impl_fntype>);
static_assert(kSameAbi<NvtxRangePopFunction*, nvtxDomainRangePop_impl_fntype>);
static_assert(kSameAbi<NvtxNameCategoryFunction*, nvtxDomainNameCategoryA_impl_fntype>);
static_assert(kSameAbi<NvtxDomainCreateFunction*, nvtxDomainCreateA_impl_fntype>);
static_assert(kSameAbi<NvtxInitialize, NvtxInitializeInjectionNvtxFunc_t>);

TEST(NvtxAbi, NumbersAreTheVendors) {
  const NvtxEvent event;
  EXPECT_EQ(event.version, NVTX_VERSION);
  EXPECT_EQ(event.size, sizeof(nvtxEventAttributes_t));
  EXPECT_EQ(kNvtxPayloadUint64, NVTX_PAYLOAD_TYPE_UNSIGNED_INT64);
  EXPECT_EQ(kNvtxMessageAscii, NVTX_MESSAGE_TYPE_ASCII);
  EXPECT_EQ(kNvtxCallbacksTable, NVTX_ETID_CALLBACKS);
  EXPECT_EQ(kNvtxVersionTable, NVTX_ETID_VERSIONINFO);
  EXPECT_EQ(kNvtxDomains, NVTX_CB_MODULE_CORE2);
  EXPECT_EQ(kNvtxRangePush, NVTX_CBID_CORE2_DomainRangePushEx);
  EXPECT_EQ(kNvtxRangePop, NVTX_CBID_CORE2_DomainRangePop);
  EXPECT_EQ(kNvtxNameCategory, NVTX_CBID_CORE2_DomainNameCategoryA);
  EXPECT_EQ(kNvtxDomainCreate, NVTX_CBID_CORE2_DomainCreateA);
  const unsigned sizes[] = {NVTX_CBID_CORE_SIZE,   NVTX_CBID_CUDA_SIZE,  NVTX_CBID_OPENCL_SIZE,
                            NVTX_CBID_CUDART_SIZE, NVTX_CBID_CORE2_SIZE, NVTX_CBID_SYNC_SIZE};
  const int modules[] = {NVTX_CB_MODULE_CORE,   NVTX_CB_MODULE_CUDA,  NVTX_CB_MODULE_OPENCL,
                         NVTX_CB_MODULE_CUDART, NVTX_CB_MODULE_CORE2, NVTX_CB_MODULE_SYNC};
  for (size_t i = 0; i < std::size(sizes); ++i) {
    EXPECT_EQ(kNvtxModules[i], modules[i]);
    EXPECT_EQ(kNvtxEntries[i], sizes[i]);
  }
}

}  // namespace
}  // namespace coordd
