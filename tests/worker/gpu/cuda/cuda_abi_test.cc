// What worker/gpu/cuda/cuda_api.h declares, beside the vendor's header: a difference does not
// compile.
#include "worker/gpu/cuda/cuda_api.h"

#include <cuda.h>
#include <gtest/gtest.h>

#include "tests/worker/support/same_abi.h"

namespace coordd {
namespace {

#define EXPECT_SAME(ours, theirs) \
  static_assert(kSameAbi<decltype(CudaFunctions::ours), decltype(&theirs)>)
EXPECT_SAME(Init, cuInit);
EXPECT_SAME(DriverGetVersion, cuDriverGetVersion);
EXPECT_SAME(GetErrorName, cuGetErrorName);
EXPECT_SAME(GetErrorString, cuGetErrorString);
EXPECT_SAME(DeviceGetCount, cuDeviceGetCount);
EXPECT_SAME(DeviceGet, cuDeviceGet);
EXPECT_SAME(DeviceGetUuid, cuDeviceGetUuid);
EXPECT_SAME(DeviceGetName, cuDeviceGetName);
EXPECT_SAME(DeviceGetAttribute, cuDeviceGetAttribute);
EXPECT_SAME(DevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain);
EXPECT_SAME(DevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease);
EXPECT_SAME(CtxPushCurrent, cuCtxPushCurrent);
EXPECT_SAME(CtxPopCurrent, cuCtxPopCurrent);
EXPECT_SAME(CtxGetStreamPriorityRange, cuCtxGetStreamPriorityRange);
EXPECT_SAME(StreamCreateWithPriority, cuStreamCreateWithPriority);
EXPECT_SAME(StreamDestroy, cuStreamDestroy);
EXPECT_SAME(StreamWaitEvent, cuStreamWaitEvent);
EXPECT_SAME(EventCreate, cuEventCreate);
EXPECT_SAME(EventDestroy, cuEventDestroy);
EXPECT_SAME(EventRecord, cuEventRecord);
EXPECT_SAME(EventQuery, cuEventQuery);
EXPECT_SAME(PointerGetAttribute, cuPointerGetAttribute);
EXPECT_SAME(MemAlloc, cuMemAlloc);
EXPECT_SAME(MemFree, cuMemFree);
EXPECT_SAME(MemHostAlloc, cuMemHostAlloc);
EXPECT_SAME(MemFreeHost, cuMemFreeHost);
EXPECT_SAME(MemcpyAsync, cuMemcpyAsync);
EXPECT_SAME(ModuleLoadData, cuModuleLoadData);
EXPECT_SAME(ModuleUnload, cuModuleUnload);
EXPECT_SAME(ModuleGetFunction, cuModuleGetFunction);
EXPECT_SAME(LaunchKernel, cuLaunchKernel);
EXPECT_SAME(DeviceGetP2PAttribute, cuDeviceGetP2PAttribute);
EXPECT_SAME(EventElapsedTime, cuEventElapsedTime);
EXPECT_SAME(StreamIsCapturing, cuStreamIsCapturing);
EXPECT_SAME(ThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode);
EXPECT_SAME(StreamBeginCapture, cuStreamBeginCapture);
EXPECT_SAME(StreamEndCapture, cuStreamEndCapture);
EXPECT_SAME(GraphDestroy, cuGraphDestroy);
#undef EXPECT_SAME

TEST(CudaAbi, NumbersAreTheVendors) {
  EXPECT_EQ(kCudaSuccess, CUDA_SUCCESS);
  EXPECT_EQ(kCudaInvalidValue, CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(kCudaOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(kCudaNotReady, CUDA_ERROR_NOT_READY);
  EXPECT_EQ(kCudaStreamNonBlocking, CU_STREAM_NON_BLOCKING);
  EXPECT_EQ(kCudaEventDisableTiming, CU_EVENT_DISABLE_TIMING);
  EXPECT_EQ(kCudaHostPortable, CU_MEMHOSTALLOC_PORTABLE);
  EXPECT_EQ(kCudaHostDeviceMap, CU_MEMHOSTALLOC_DEVICEMAP);
  EXPECT_EQ(kCudaPointerMemoryType, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
  EXPECT_EQ(kCudaPointerDeviceOrdinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
  EXPECT_EQ(kCudaMemoryHost, CU_MEMORYTYPE_HOST);
  EXPECT_EQ(kCudaMemoryDevice, CU_MEMORYTYPE_DEVICE);
  EXPECT_EQ(kCudaCapabilityMajor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  EXPECT_EQ(kCudaCapabilityMinor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  EXPECT_EQ(kCudaDmaBufSupported, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);
  EXPECT_EQ(kCudaMulticastSupported, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED);
  EXPECT_EQ(kCudaPeerNativeAtomics, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED);
  EXPECT_EQ(kCudaNotCapturing, CU_STREAM_CAPTURE_STATUS_NONE);
  EXPECT_EQ(kCudaCaptureRelaxed, CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_EQ(sizeof(CudaUuid), sizeof(CUuuid));
}

}  // namespace
}  // namespace coordd
