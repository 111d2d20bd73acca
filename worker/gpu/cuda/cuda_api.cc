#include "worker/gpu/cuda/cuda_api.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "worker/base/function_table.h"

namespace coordd {

absl::StatusOr<CudaFunctions> LoadCuda(const std::string& library) {
  COORDD_ASSIGN_OR_RETURN(DynamicLibrary opened, DynamicLibrary::Open(library));
  FunctionTable table(opened);
  CudaFunctions cuda;
  table.Required(cuda.Init, "cuInit");
  table.Required(cuda.DriverGetVersion, "cuDriverGetVersion");
  table.Required(cuda.GetErrorName, "cuGetErrorName");
  table.Required(cuda.GetErrorString, "cuGetErrorString");
  table.Required(cuda.DeviceGetCount, "cuDeviceGetCount");
  table.Required(cuda.DeviceGet, "cuDeviceGet");
  table.Required(cuda.DeviceGetUuid, "cuDeviceGetUuid_v2");  // of a MIG slice, its own
  table.Required(cuda.DeviceGetName, "cuDeviceGetName");
  table.Required(cuda.DeviceGetAttribute, "cuDeviceGetAttribute");
  table.Required(cuda.DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain");
  table.Required(cuda.DevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2");
  table.Required(cuda.CtxPushCurrent, "cuCtxPushCurrent_v2");
  table.Required(cuda.CtxPopCurrent, "cuCtxPopCurrent_v2");
  table.Required(cuda.CtxGetStreamPriorityRange, "cuCtxGetStreamPriorityRange");
  table.Required(cuda.StreamCreateWithPriority, "cuStreamCreateWithPriority");
  table.Required(cuda.StreamDestroy, "cuStreamDestroy_v2");
  table.Required(cuda.StreamWaitEvent, "cuStreamWaitEvent");
  table.Required(cuda.EventCreate, "cuEventCreate");
  table.Required(cuda.EventDestroy, "cuEventDestroy_v2");
  table.Required(cuda.EventRecord, "cuEventRecord");
  table.Required(cuda.EventQuery, "cuEventQuery");
  table.Required(cuda.PointerGetAttribute, "cuPointerGetAttribute");
  table.Required(cuda.MemAlloc, "cuMemAlloc_v2");
  table.Required(cuda.MemFree, "cuMemFree_v2");
  table.Required(cuda.MemHostAlloc, "cuMemHostAlloc");
  table.Required(cuda.MemFreeHost, "cuMemFreeHost");
  table.Required(cuda.MemcpyAsync, "cuMemcpyAsync");
  table.Required(cuda.ModuleLoadData, "cuModuleLoadData");
  table.Required(cuda.ModuleUnload, "cuModuleUnload");
  table.Required(cuda.ModuleGetFunction, "cuModuleGetFunction");
  table.Required(cuda.LaunchKernel, "cuLaunchKernel");
  table.Optional(cuda.DeviceGetP2PAttribute, "cuDeviceGetP2PAttribute");
  table.Optional(cuda.EventElapsedTime, "cuEventElapsedTime");
  table.Optional(cuda.StreamIsCapturing, "cuStreamIsCapturing");
  table.Optional(cuda.ThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode");
  table.Optional(cuda.StreamBeginCapture, "cuStreamBeginCapture_v2");
  table.Optional(cuda.StreamEndCapture, "cuStreamEndCapture");
  table.Optional(cuda.GraphDestroy, "cuGraphDestroy");
  if (table.missing_required().empty()) return cuda;
  return absl::NotFoundError(absl::StrCat(library, " has no ",
                                          absl::StrJoin(table.missing_required(), ", "),
                                          ", which drivers have since CUDA 11.4"));
}

}  // namespace coordd
