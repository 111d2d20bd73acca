// Memory and its registration, for fake_nccl.so.
#include <map>
#include <mutex>

#include "tests/support/gpu/fake_cuda.h"
#include "tests/support/gpu/fake_nccl.h"
#include "tests/support/gpu/fake_nccl_comm.h"
#include "tests/support/gpu/fake_nccl_rules.h"
#include "tests/support/gpu/fake_nccl_version.h"

using namespace coordd;

namespace {

std::atomic<long> registered_count = 0, windows_count = 0;

// What ncclMemAlloc has given, and how many windows are on it.
std::mutex memory_mu;
std::map<void*, int> allocated;

}  // namespace

namespace coordd {

void PollWindow(FakeComm& comm) {
  std::lock_guard lock(comm.mu);
  bool equal = false;
  if (!comm.clique->WindowIsMade(comm.window_number, &equal)) return;
  if (!equal) {
    BreakRule("a window of different sizes");
    comm.error = static_cast<int>(NcclResult::kInvalidUsage);
  } else if (FakeNcclSettings().Get("no_windows") == 0) {
    *comm.window_slot = reinterpret_cast<NcclWindow>(comm.window_buffer);
    comm.windows.emplace(*comm.window_slot, comm.window_buffer);
    ++windows_count;
    std::lock_guard memory_lock(memory_mu);
    ++allocated[comm.window_buffer];
  }
  comm.window_pending = false;
}

void ForgetWindow(void* buffer) {
  std::lock_guard lock(memory_mu);
  --allocated[buffer];
}

}  // namespace coordd

extern "C" {

CudaResult cuMemAlloc_v2(CudaPointer* pointer, size_t size_bytes);
CudaResult cuMemFree_v2(CudaPointer pointer);

long fake_nccl_registered_buffers() { return registered_count; }
long fake_nccl_windows() { return windows_count; }

#if FAKE_NCCL_REGISTERS
NcclResult ncclCommRegister(NcclComm handle, void* buffer, size_t size, void** registered) {
  FakeComm& comm = *handle->comm;
  if (!comm.initialised || comm.polls > 0) return Refuse("ncclCommRegister while NCCL is busy");
  if (comm.finalized) return Refuse("ncclCommRegister after ncclCommFinalize");
  if (!OnDevice(buffer, comm.device))
    return Refuse("registering what is not memory of the communicator's device");
  if (const long error = FakeNcclSettings().Get("register_error"); error != 0) {
    SetError("the fake was told not to register");
    return static_cast<NcclResult>(error);
  }
  std::lock_guard lock(comm.mu);
  if (!comm.registered.emplace(buffer, size).second) return Refuse("a buffer registered twice");
  ++registered_count;
  *registered = buffer;
  return NcclResult::kSuccess;
}
NcclResult ncclCommDeregister(NcclComm handle, void* registered) {
  std::lock_guard lock(handle->comm->mu);
  if (handle->comm->registered.erase(registered) == 0)
    return Refuse("ncclCommDeregister of what is not registered");
  return NcclResult::kSuccess;
}
NcclResult ncclMemAlloc(void** pointer, size_t size) {
  if (fake_cuda_current_device() < 0) return Refuse("ncclMemAlloc without a device");
  if (const long error = FakeNcclSettings().Get("memory_error"); error != 0)
    return static_cast<NcclResult>(error);
  CudaPointer memory = 0;
  if (cuMemAlloc_v2(&memory, size) != kCudaSuccess) return NcclResult::kUnhandledCudaError;
  *pointer = reinterpret_cast<void*>(memory);
  std::lock_guard lock(memory_mu);
  allocated.emplace(*pointer, 0);
  return NcclResult::kSuccess;
}
NcclResult ncclMemFree(void* pointer) {
  {
    std::lock_guard lock(memory_mu);
    const auto found = allocated.find(pointer);
    if (found == allocated.end()) return Refuse("ncclMemFree of what ncclMemAlloc did not give");
    if (found->second != 0) return Refuse("ncclMemFree of what a communicator has a window of");
    allocated.erase(found);
  }
  return cuMemFree_v2(reinterpret_cast<CudaPointer>(pointer)) == kCudaSuccess
             ? NcclResult::kSuccess
             : NcclResult::kUnhandledCudaError;
}
#endif
#if FAKE_NCCL_SHRINKS
// Of one rank after the other: it is pending until all have come.
NcclResult ncclCommWindowRegister(NcclComm handle, void* buffer, size_t size, NcclWindow* window,
                                  int flags) {
  FakeComm& comm = *handle->comm;
  if (!comm.initialised || comm.polls > 0 || comm.window_pending)
    return Refuse("ncclCommWindowRegister while NCCL is busy");
  if (comm.finalized) return Refuse("ncclCommWindowRegister after ncclCommFinalize");
  if (flags != kNcclWindowSymmetric) return Refuse("a window that is not symmetric");
  {
    std::lock_guard lock(memory_mu);
    if (allocated.count(buffer) == 0)
      return Refuse("a symmetric window of memory that is not ncclMemAlloc's");
  }
  std::lock_guard lock(comm.mu);
  *window = nullptr;
  comm.window_slot = window;
  comm.window_buffer = buffer;
  comm.window_number = comm.clique->AddWindow(comm.rank, size);
  comm.window_pending = true;
  return NcclResult::kInProgress;
}
NcclResult ncclCommWindowDeregister(NcclComm handle, NcclWindow window) {
  std::lock_guard lock(handle->comm->mu);
  const auto found = handle->comm->windows.find(window);
  if (found == handle->comm->windows.end())
    return Refuse("ncclCommWindowDeregister of what is no window");
  ForgetWindow(found->second);
  handle->comm->windows.erase(found);
  return NcclResult::kSuccess;
}
#endif

}  // extern "C"
