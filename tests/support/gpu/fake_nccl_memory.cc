// Memory and its registration, for fake_nccl.so.
#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

#include "tests/support/gpu/fake_cuda.h"
#include "tests/support/gpu/fake_nccl.h"
#include "tests/support/gpu/fake_nccl_comm.h"
#include "tests/support/gpu/fake_nccl_rules.h"
#include "tests/support/gpu/fake_nccl_version.h"

using namespace coordd;

namespace {

std::atomic<long> registered_count = 0, windows_count = 0;

// What ncclMemAlloc has given, and how many windows are on it.
struct Memory {
  size_t size = 0;
  int windows = 0;
};
std::mutex memory_mu;
std::map<void*, Memory> allocated;

#if FAKE_NCCL_SHRINKS
// NCCL maps in pieces of that; and this is what an offset has to be a multiple of.
constexpr uint64_t kGranularity = 2 << 20, kAlignment = 4096;

// Where a window of new memory comes to lie: the first gap that is large enough (ncclSpaceAlloc).
// REQUIRES: comm.mu.
uint64_t NextPlace(FakeComm& comm, uint64_t bytes) {
  const uint64_t size = (bytes + kGranularity - 1) / kGranularity * kGranularity;
  if (FAKE_NCCL_VERSION < 22800) return std::exchange(comm.windows_end, comm.windows_end + size);
  std::map<uint64_t, uint64_t> taken;
  for (const auto& [handle, window] : comm.windows)
    taken[window.shared.place] = window.shared.place + window.shared.allocation;
  uint64_t place = 0;
  for (const auto& [begin, end] : taken) {
    if (place + size <= begin) break;
    place = std::max(place, (end + kGranularity - 1) / kGranularity * kGranularity);
  }
  return place;
}
#endif

}  // namespace

namespace coordd {

void PollWindow(FakeComm& comm) {
  std::lock_guard lock(comm.mu);
  const char* differs = nullptr;
  if (!comm.window_pending || !comm.clique->WindowIsMade(comm.window_number, &differs)) return;
  if (differs != nullptr) {
    BreakRule(differs);
    comm.error = static_cast<int>(NcclResult::kInvalidUsage);
  } else if (FakeNcclSettings().Get("no_windows") == 0) {
    *comm.window_slot = reinterpret_cast<NcclWindow>(comm.next_window.memory);
    comm.windows.emplace(*comm.window_slot, comm.next_window);
    ++windows_count;
    std::lock_guard memory_lock(memory_mu);
    ++allocated[comm.next_window.memory].windows;
  }
  comm.window_pending = false;
}

void ForgetWindow(void* memory) {
  std::lock_guard lock(memory_mu);
  --allocated[memory].windows;
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
  allocated.emplace(*pointer, Memory{size, 0});
  return NcclResult::kSuccess;
}
NcclResult ncclMemFree(void* pointer) {
  {
    std::lock_guard lock(memory_mu);
    const auto found = allocated.find(pointer);
    if (found == allocated.end()) return Refuse("ncclMemFree of what ncclMemAlloc did not give");
    if (found->second.windows != 0)
      return Refuse("ncclMemFree of what a communicator has a window of");
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
  FakeComm::Window next;
  uint64_t offset = 0;
  {
    std::lock_guard lock(memory_mu);
    auto found = allocated.upper_bound(buffer);
    if (found == allocated.begin()) return Refuse("a symmetric window of other memory");
    --found;
    next.memory = found->first;
    offset = static_cast<uint64_t>(static_cast<char*>(buffer) - static_cast<char*>(next.memory));
    next.shared.bytes = size;
    next.shared.allocation = found->second.size;
    if (offset + size > found->second.size)
      return Refuse("a symmetric window of memory that is not ncclMemAlloc's");
    if (offset % kAlignment != 0) return Refuse("Window address must be suitably aligned.");
  }
  std::lock_guard lock(comm.mu);
  // 2.27 unmaps all of it with the first of them that is deregistered; later ones map it once, and
  // so take ranks for equal of which one has mapped it and another has not.
  for (const auto& [handle_of, other] : comm.windows)
    if (other.memory == next.memory) return Refuse("two windows of one allocation");
  next.shared.place = NextPlace(comm, next.shared.allocation) + offset;
  *window = nullptr;
  comm.window_slot = window;
  comm.next_window = next;
  comm.window_number = comm.clique->AddWindow(comm.rank, next.shared);
  comm.window_pending = true;
  return NcclResult::kInProgress;
}
NcclResult ncclCommWindowDeregister(NcclComm handle, NcclWindow window) {
  std::lock_guard lock(handle->comm->mu);
  const auto found = handle->comm->windows.find(window);
  if (found == handle->comm->windows.end())
    return Refuse("ncclCommWindowDeregister of what is no window");
  ForgetWindow(found->second.memory);
  handle->comm->windows.erase(found);
  return NcclResult::kSuccess;
}
#endif

}  // extern "C"
