// The part of CUDA's driver that coordd calls: types, numbers and functions as its documentation
// gives them, in our words, so that no vendor header is needed to build. The driver alone, not the
// runtime: it has one name for all versions, and is what is never bundled (docs/design/nccl.md).
// tests/worker/gpu/cuda/cuda_abi_test.cc compares with the vendor's header where there is one. (io)
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace coordd {

inline constexpr char kCudaDriverLibrary[] = "libcuda.so.1";

using CudaResult = int;
using CudaDevice = int;
using CudaContext = struct CudaContextHandle*;
using CudaStream = struct CudaStreamHandle*;  // nullptr: the legacy default stream
using CudaEvent = struct CudaEventHandle*;
using CudaModule = struct CudaModuleHandle*;
using CudaGraph = struct CudaGraphHandle*;
using CudaFunction = struct CudaFunctionHandle*;
using CudaPointer = uint64_t;
struct CudaUuid {
  unsigned char bytes[16];
};

static_assert(sizeof(CudaUuid) == 16);

inline constexpr CudaResult kCudaSuccess = 0;
inline constexpr CudaResult kCudaInvalidValue = 1;
inline constexpr CudaResult kCudaOutOfMemory = 2;
inline constexpr CudaResult kCudaNotReady = 600;

inline constexpr unsigned kCudaStreamNonBlocking = 1;  // does not wait for the default stream
inline constexpr unsigned kCudaEventDisableTiming = 2;
inline constexpr unsigned kCudaHostPortable = 1;   // pinned for every context
inline constexpr unsigned kCudaHostDeviceMap = 2;  // a kernel may read it
inline constexpr int kCudaPointerMemoryType = 2;
inline constexpr int kCudaPointerDeviceOrdinal = 9;
inline constexpr unsigned kCudaMemoryHost = 1;
inline constexpr unsigned kCudaMemoryDevice = 2;
inline constexpr int kCudaCapabilityMajor = 75;
inline constexpr int kCudaCapabilityMinor = 76;
inline constexpr int kCudaDmaBufSupported = 124;
inline constexpr int kCudaMulticastSupported = 132;
inline constexpr int kCudaPeerNativeAtomics = 3;  // all atomics over the link: NVLink
inline constexpr int kCudaNotCapturing = 0;
inline constexpr int kCudaCaptureRelaxed = 2;

// Members are named as the driver's functions, less "cu"; the suffixes _v2 are those of the
// symbols.
struct CudaFunctions {
  CudaResult (*Init)(unsigned flags) = nullptr;
  CudaResult (*DriverGetVersion)(int* version) = nullptr;
  CudaResult (*GetErrorName)(CudaResult error, const char** name) = nullptr;
  CudaResult (*GetErrorString)(CudaResult error, const char** text) = nullptr;
  CudaResult (*DeviceGetCount)(int* count) = nullptr;
  CudaResult (*DeviceGet)(CudaDevice* device, int ordinal) = nullptr;
  CudaResult (*DeviceGetUuid)(CudaUuid* uuid, CudaDevice device) = nullptr;
  CudaResult (*DeviceGetName)(char* name, int length, CudaDevice device) = nullptr;
  CudaResult (*DeviceGetAttribute)(int* value, int attribute, CudaDevice device) = nullptr;
  CudaResult (*DevicePrimaryCtxRetain)(CudaContext* context, CudaDevice device) = nullptr;
  CudaResult (*DevicePrimaryCtxRelease)(CudaDevice device) = nullptr;
  CudaResult (*CtxPushCurrent)(CudaContext context) = nullptr;
  CudaResult (*CtxPopCurrent)(CudaContext* context) = nullptr;
  CudaResult (*CtxGetStreamPriorityRange)(int* least, int* greatest) = nullptr;
  CudaResult (*StreamCreateWithPriority)(CudaStream* stream, unsigned flags,
                                         int priority) = nullptr;
  CudaResult (*StreamDestroy)(CudaStream stream) = nullptr;
  CudaResult (*StreamWaitEvent)(CudaStream stream, CudaEvent event, unsigned flags) = nullptr;
  CudaResult (*EventCreate)(CudaEvent* event, unsigned flags) = nullptr;
  CudaResult (*EventDestroy)(CudaEvent event) = nullptr;
  CudaResult (*EventRecord)(CudaEvent event, CudaStream stream) = nullptr;
  CudaResult (*EventQuery)(CudaEvent event) = nullptr;
  CudaResult (*PointerGetAttribute)(void* value, int attribute, CudaPointer pointer) = nullptr;
  CudaResult (*MemAlloc)(CudaPointer* pointer, size_t size_bytes) = nullptr;
  CudaResult (*MemFree)(CudaPointer pointer) = nullptr;
  CudaResult (*MemHostAlloc)(void** pointer, size_t size_bytes, unsigned flags) = nullptr;
  CudaResult (*MemFreeHost)(void* pointer) = nullptr;
  CudaResult (*MemcpyAsync)(CudaPointer to, CudaPointer from, size_t size_bytes,
                            CudaStream stream) = nullptr;
  CudaResult (*ModuleLoadData)(CudaModule* module, const void* image) = nullptr;
  CudaResult (*ModuleUnload)(CudaModule module) = nullptr;
  CudaResult (*ModuleGetFunction)(CudaFunction* function, CudaModule module,
                                  const char* name) = nullptr;
  CudaResult (*LaunchKernel)(CudaFunction function, unsigned grid_x, unsigned grid_y,
                             unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                             unsigned shared_bytes, CudaStream stream, void** arguments,
                             void** extra) = nullptr;

  // Optional: nullptr in drivers without it.
  CudaResult (*DeviceGetP2PAttribute)(int* value, int attribute, CudaDevice from,
                                      CudaDevice to) = nullptr;
  CudaResult (*EventElapsedTime)(float* milliseconds, CudaEvent from,
                                 CudaEvent to) = nullptr;  // for those who measure
  CudaResult (*StreamIsCapturing)(CudaStream stream, int* status) = nullptr;
  CudaResult (*ThreadExchangeStreamCaptureMode)(int* mode) = nullptr;
  CudaResult (*StreamBeginCapture)(CudaStream stream, int mode) = nullptr;
  CudaResult (*StreamEndCapture)(CudaStream stream, CudaGraph* graph) = nullptr;
  CudaResult (*GraphDestroy)(CudaGraph graph) = nullptr;
};

// What stays open to the end of the process. NOT_FOUND: there is no driver, or it lacks what every
// driver since CUDA 11.4 has; names both.
absl::StatusOr<CudaFunctions> LoadCuda(const std::string& library = kCudaDriverLibrary);

}  // namespace coordd
