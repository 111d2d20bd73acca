#include "tests/support/gpu/fake_cuda.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/gpu/fake_cuda_settings.h"
#include "tests/support/gpu/fake_graph.h"
#include "tests/support/gpu/fake_stream.h"
#include "tests/support/gpu/host_kernels.h"

// NOLINTBEGIN: the driver's names
using namespace coordd;

namespace {

constexpr CudaResult kNotInitialized = 3;
constexpr CudaResult kInvalidDevice = 101;
constexpr CudaResult kInvalidImage = 200;
constexpr CudaResult kInvalidContext = 201;
constexpr CudaResult kNotFound = 500;
constexpr CudaResult kCaptureUnsafe = 900;
constexpr CudaResult kLaunchFailed = 719;
constexpr int kDevicesMax = 16;

FakeSettings& Settings() { return FakeCudaSettings(); }

struct Allocation {
  size_t size = 0;
  int device = -1;    // -1: pinned host memory
  int made_with = 0;  // the device that was current
};
struct Memory {
  std::mutex mu;
  std::map<const char*, Allocation> allocations;
  size_t device_bytes = 0;
};
Memory& TheMemory() {
  static Memory* memory = new Memory;
  return *memory;
}

std::atomic<bool> initialized = false;
std::atomic<long> live_objects = 0, functions_asked = 0, scalings = 0;
// Of the driver's lock, where "free_locks" says so: by device, since a process has a lock of its
// own, and ranks that a test runs in one process, each with a device, stand for processes.
std::atomic<int> holders[kDevicesMax];
int context_marks[kDevicesMax];  // their addresses are the contexts
thread_local std::vector<CudaContext> current;
thread_local int capture_mode = 0;  // global

struct FakeEvent {
  std::shared_ptr<FakePoint> point;         // of the last record; nullptr: never recorded
  std::shared_ptr<FakeGraphBody> captured;  // the last record was a part of that
};
struct FakeFunction {
  std::string name;
};

// Those that somebody has made, with the device that was current then.
struct Streams {
  std::mutex mu;
  std::map<FakeStream*, int> devices;
};
Streams& TheStreams() {
  static Streams* streams = new Streams;
  return *streams;
}

int DeviceOf(CudaContext context) {
  return static_cast<int>(reinterpret_cast<int*>(context) - context_marks);
}

CudaResult Allocate(void** pointer, size_t size, int device) {
  Memory& memory = TheMemory();
  std::lock_guard lock(memory.mu);
  const size_t limit = static_cast<size_t>(Settings().Get("memory_limit"));
  if (size == 0) return kCudaInvalidValue;
  if (device >= 0 && limit > 0 && memory.device_bytes + size > limit) return kCudaOutOfMemory;
  void* made = nullptr;
  if (posix_memalign(&made, 256, size) != 0) return kCudaOutOfMemory;
  std::memset(made, 0xcd, size);  // what nobody has written yet is nothing that looks right
  memory.allocations[static_cast<char*>(made)] = {size, device, DeviceOf(current.back())};
  if (device >= 0) memory.device_bytes += size;
  *pointer = made;
  ++live_objects;
  return kCudaSuccess;
}

CudaResult Free(void* pointer) {
  Memory& memory = TheMemory();
  std::lock_guard lock(memory.mu);
  const auto it = memory.allocations.find(static_cast<char*>(pointer));
  if (it == memory.allocations.end()) return kCudaInvalidValue;
  if (it->second.device >= 0) memory.device_bytes -= it->second.size;
  memory.allocations.erase(it);
  std::free(pointer);
  --live_objects;
  return kCudaSuccess;
}

void AwaitIdle(int device) {
  const bool holds = Settings().Get("free_locks") != 0;
  if (holds) ++holders[device];
  std::vector<std::shared_ptr<FakePoint>> points;
  {
    std::lock_guard lock(TheStreams().mu);
    for (const auto& [stream, on] : TheStreams().devices) {
      if (on != device) continue;
      points.push_back(std::make_shared<FakePoint>());
      stream->PushRecord(points.back());
    }
  }
  for (const auto& point : points) point->happened.wait(false);
  if (!holds) return;
  --holders[device];
  holders[device].notify_all();
}

// While somebody waits in a free with the driver's lock, calls of other threads wait for that.
void AwaitLock(int device) {
  std::atomic<int>& held_by = holders[device];
  for (int held = held_by; held > 0; held = held_by) held_by.wait(held);
}

// The same of this thread's device, if it has one.
void AwaitLock() {
  if (!current.empty()) AwaitLock(DeviceOf(current.back()));
}

const Allocation* Find(const void* pointer) {
  Memory& memory = TheMemory();
  std::lock_guard lock(memory.mu);
  auto it = memory.allocations.upper_bound(static_cast<const char*>(pointer));
  if (it == memory.allocations.begin()) return nullptr;
  --it;
  return pointer < it->first + it->second.size ? &it->second : nullptr;
}

// While a graph is captured, a thread that is not relaxed may not do that.
bool EndsCapture() { return capture_mode != kCudaCaptureRelaxed && FakeCaptures() > 0; }

}  // namespace

namespace coordd {

FakeStream& StreamOf(CudaStream stream) {
  static FakeStream* by_default = new FakeStream;
  return stream == nullptr ? *by_default : *reinterpret_cast<FakeStream*>(stream);
}

void CaptureStreams(const std::shared_ptr<FakeGraphBody>& from,
                    const std::shared_ptr<FakeGraphBody>& to) {
  std::lock_guard lock(TheStreams().mu);
  for (const auto& [stream, on] : TheStreams().devices)
    if (stream->capture() == from) stream->SetCapture(to);
}

}  // namespace coordd

extern "C" {

void fake_cuda_set(const char* name, long value) { Settings().Set(name, value); }

void fake_cuda_enqueue(CudaStream stream, void (*run)(void*), void* argument) {
  StreamOf(stream).Push([run, argument] { run(argument); });
}

int fake_cuda_current_device() { return current.empty() ? -1 : DeviceOf(current.back()); }

int fake_cuda_capability() { return static_cast<int>(Settings().Get("capability")); }

int fake_cuda_device_of(const void* pointer) {
  const Allocation* allocation = Find(pointer);
  return allocation == nullptr ? -1 : allocation->device;
}

void* fake_cuda_allocate_pinned() {
  void* made = nullptr;
  return Allocate(&made, sizeof(uint32_t), -1) == kCudaSuccess ? made : nullptr;
}
void fake_cuda_free_pinned(void* pointer) {
  if (const Allocation* allocation = Find(pointer); allocation != nullptr) {
    AwaitLock(allocation->made_with);
    AwaitIdle(allocation->made_with);
  }
  Free(pointer);
}

long fake_cuda_live_objects() { return live_objects; }

long fake_cuda_functions_asked() { return functions_asked; }
long fake_cuda_scalings() { return scalings; }

int fake_cuda_lock_holders() { return std::accumulate(std::begin(holders), std::end(holders), 0); }

long fake_cuda_lock_holders_of(int device) { return holders[device]; }

CudaResult cuInit(unsigned) {
  const CudaResult error = static_cast<CudaResult>(Settings().Get("init_error"));
  initialized = error == kCudaSuccess;
  return error;
}
CudaResult cuDriverGetVersion(int* version) {
  *version = static_cast<int>(Settings().Get("driver"));
  return kCudaSuccess;
}
CudaResult cuGetErrorName(CudaResult error, const char** name) {
  *name = error == 100   ? "CUDA_ERROR_NO_DEVICE"
          : error == 200 ? "CUDA_ERROR_INVALID_IMAGE"
          : error == 201 ? "CUDA_ERROR_INVALID_CONTEXT"
          : error == 2   ? "CUDA_ERROR_OUT_OF_MEMORY"
                         : "CUDA_ERROR_OF_THE_FAKE";
  return kCudaSuccess;
}
CudaResult cuGetErrorString(CudaResult error, const char** text) {
  *text = error == 100   ? "no CUDA-capable device is detected"
          : error == 201 ? "invalid device context"
          : error == 2   ? "out of memory"
                         : "an error of the fake";
  return kCudaSuccess;
}
CudaResult cuDeviceGetCount(int* count) {
  if (!initialized) return kNotInitialized;
  *count = static_cast<int>(Settings().Get("devices"));
  return kCudaSuccess;
}
CudaResult cuDeviceGet(CudaDevice* device, int ordinal) {
  if (ordinal < 0 || ordinal >= Settings().Get("devices")) return kInvalidDevice;
  *device = ordinal;
  return kCudaSuccess;
}
CudaResult cuDeviceGetUuid_v2(CudaUuid* uuid, CudaDevice device) {
  for (int i = 0; i < 16; ++i) uuid->bytes[i] = static_cast<unsigned char>(i * 16);
  uuid->bytes[15] = static_cast<unsigned char>(device);
  return kCudaSuccess;
}
CudaResult cuDeviceGetName(char* name, int length, CudaDevice) {
  std::snprintf(name, length, Settings().Get("mig") ? "Fake GPU MIG 1g.10gb" : "Fake GPU");
  return kCudaSuccess;
}
CudaResult cuDeviceGetAttribute(int* value, int attribute, CudaDevice) {
  *value = 0;
  if (attribute == kCudaCapabilityMajor) *value = fake_cuda_capability();
  if (attribute == kCudaMulticastSupported) *value = static_cast<int>(Settings().Get("multicast"));
  return kCudaSuccess;
}
CudaResult cuDeviceGetP2PAttribute(int* value, int attribute, CudaDevice, CudaDevice) {
  *value = attribute == kCudaPeerNativeAtomics && Settings().Get("nvlink") == 1 ? 1 : 0;
  return kCudaSuccess;
}
CudaResult cuDevicePrimaryCtxRetain(CudaContext* context, CudaDevice device) {
  *context = reinterpret_cast<CudaContext>(&context_marks[device]);
  ++live_objects;
  return kCudaSuccess;
}
CudaResult cuDevicePrimaryCtxRelease_v2(CudaDevice) {
  --live_objects;
  return kCudaSuccess;
}
CudaResult cuCtxPushCurrent_v2(CudaContext context) {
  if (context == nullptr) return kInvalidContext;
  AwaitLock(DeviceOf(context));
  current.push_back(context);
  return kCudaSuccess;
}
CudaResult cuCtxPopCurrent_v2(CudaContext* context) {
  if (current.empty()) return kInvalidContext;
  *context = current.back();
  current.pop_back();
  return kCudaSuccess;
}
CudaResult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  if (current.empty()) return kInvalidContext;
  *least = 0;
  *greatest = -5;
  return kCudaSuccess;
}

CudaResult cuStreamCreateWithPriority(CudaStream* stream, unsigned, int) {
  if (current.empty()) return kInvalidContext;
  auto* const made = new FakeStream(QueueOf(DeviceOf(current.back())));
  *stream = reinterpret_cast<CudaStream>(made);
  ++live_objects;
  std::lock_guard lock(TheStreams().mu);
  TheStreams().devices[made] = DeviceOf(current.back());
  return kCudaSuccess;
}
CudaResult cuStreamDestroy_v2(CudaStream stream) {
  if (current.empty()) return kInvalidContext;
  {
    std::lock_guard lock(TheStreams().mu);
    TheStreams().devices.erase(&StreamOf(stream));
  }
  delete &StreamOf(stream);
  --live_objects;
  return kCudaSuccess;
}
CudaResult cuStreamWaitEvent(CudaStream stream, CudaEvent event, unsigned) {
  AwaitLock();
  if (current.empty()) return kInvalidContext;
  // As a driver does: the stream takes part in the capture.
  if (const auto graph = reinterpret_cast<FakeEvent*>(event)->captured; graph != nullptr) {
    StreamOf(stream).SetCapture(graph);
    return kCudaSuccess;
  }
  const auto point = reinterpret_cast<FakeEvent*>(event)->point;
  if (point != nullptr) StreamOf(stream).PushWait(point);
  return kCudaSuccess;
}
// "capturing": of all streams. A thread that is not relaxed ends the capture.
CudaResult cuStreamIsCapturing(CudaStream stream, int* status) {
  *status =
      StreamOf(stream).capture() != nullptr ? 1 : static_cast<int>(Settings().Get("capturing"));
  return kCudaSuccess;
}
CudaResult cuThreadExchangeStreamCaptureMode(int* mode) {
  std::swap(*mode, capture_mode);
  return kCudaSuccess;
}
CudaResult cuEventCreate(CudaEvent* event, unsigned) {
  if (current.empty()) return kInvalidContext;
  *event = reinterpret_cast<CudaEvent>(new FakeEvent);
  ++live_objects;
  return kCudaSuccess;
}
CudaResult cuEventDestroy_v2(CudaEvent event) {
  if (current.empty()) return kInvalidContext;
  delete reinterpret_cast<FakeEvent*>(event);
  --live_objects;
  return kCudaSuccess;
}
CudaResult cuEventRecord(CudaEvent event, CudaStream stream) {
  AwaitLock();
  if (current.empty()) return kInvalidContext;
  reinterpret_cast<FakeEvent*>(event)->captured = StreamOf(stream).capture();
  if (reinterpret_cast<FakeEvent*>(event)->captured != nullptr) return kCudaSuccess;
  auto point = std::make_shared<FakePoint>();
  reinterpret_cast<FakeEvent*>(event)->point = point;
  StreamOf(stream).PushRecord(point);
  return kCudaSuccess;
}
CudaResult cuEventQuery(CudaEvent event) {
  if (current.empty()) return kInvalidContext;
  if (HostContextEnded()) return kLaunchFailed;
  if (EndsCapture() || (Settings().Get("capturing") != 0 && capture_mode != kCudaCaptureRelaxed))
    return kCaptureUnsafe;
  const auto point = reinterpret_cast<FakeEvent*>(event)->point;
  return point == nullptr || point->happened ? kCudaSuccess : kCudaNotReady;
}

CudaResult cuEventElapsedTime(float* milliseconds, CudaEvent from, CudaEvent to) {
  const auto begin = reinterpret_cast<FakeEvent*>(from)->point;
  const auto end = reinterpret_cast<FakeEvent*>(to)->point;
  if (begin == nullptr || end == nullptr) return kCudaInvalidValue;
  if (!begin->happened || !end->happened) return kCudaNotReady;
  *milliseconds = std::chrono::duration<float, std::milli>(end->at - begin->at).count();
  return kCudaSuccess;
}

CudaResult cuPointerGetAttribute(void* value, int attribute, CudaPointer pointer) {
  if (current.empty()) return kInvalidContext;
  const Allocation* allocation = Find(reinterpret_cast<const void*>(pointer));
  if (allocation == nullptr) return kCudaInvalidValue;
  if (attribute == kCudaPointerMemoryType)
    *static_cast<unsigned*>(value) = allocation->device < 0 ? kCudaMemoryHost : kCudaMemoryDevice;
  if (attribute == kCudaPointerDeviceOrdinal) *static_cast<int*>(value) = allocation->device;
  return kCudaSuccess;
}
CudaResult cuMemAlloc_v2(CudaPointer* pointer, size_t size) {
  AwaitLock();
  if (current.empty()) return kInvalidContext;
  if (EndsCapture()) return kCaptureUnsafe;
  return Allocate(reinterpret_cast<void**>(pointer), size, DeviceOf(current.back()));
}
// As a driver does: when everything that is on the device has ended.
CudaResult cuMemFree_v2(CudaPointer pointer) {
  if (current.empty()) return kInvalidContext;
  AwaitIdle(fake_cuda_device_of(reinterpret_cast<void*>(pointer)));
  return Free(reinterpret_cast<void*>(pointer));
}
CudaResult cuMemHostAlloc(void** pointer, size_t size, unsigned) {
  if (current.empty()) return kInvalidContext;
  if (EndsCapture()) return kCaptureUnsafe;
  return Allocate(pointer, size, -1);
}
// The same (NVIDIA/nccl issue 48), of the device that it was made for.
CudaResult cuMemFreeHost(void* pointer) {
  if (current.empty()) return kInvalidContext;
  if (const Allocation* allocation = Find(pointer); allocation != nullptr)
    AwaitIdle(allocation->made_with);
  return Free(pointer);
}
CudaResult cuMemcpyAsync(CudaPointer to, CudaPointer from, size_t size, CudaStream stream) {
  AwaitLock();
  if (current.empty()) return kInvalidContext;
  auto copy = [to, from, size] {
    // The host may be looking at a word, behind which it sees what was copied before.
    if (size == sizeof(uint32_t) && to % sizeof(uint32_t) == 0 && from % sizeof(uint32_t) == 0) {
      __atomic_store_n(reinterpret_cast<uint32_t*>(to), *reinterpret_cast<uint32_t*>(from),
                       __ATOMIC_RELEASE);
      return;
    }
    std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), size);
  };
  // As a driver does: what is read from pageable memory has been read when the call returns.
  if (Find(reinterpret_cast<const void*>(from)) != nullptr) {
    StreamOf(stream).Push(copy);
    return kCudaSuccess;
  }
  auto kept = std::make_shared<std::vector<char>>(reinterpret_cast<const char*>(from),
                                                  reinterpret_cast<const char*>(from) + size);
  StreamOf(stream).Push(
      [to, kept] { std::memcpy(reinterpret_cast<void*>(to), kept->data(), kept->size()); });
  return kCudaSuccess;
}

CudaResult cuModuleLoadData(CudaModule* module, const void* image) {
  if (current.empty()) return kInvalidContext;
  if (std::strstr(static_cast<const char*>(image), ".version 8.0\n.target sm_70") == nullptr)
    return kInvalidImage;
  *module = reinterpret_cast<CudaModule>(const_cast<void*>(image));
  ++live_objects;
  return kCudaSuccess;
}
CudaResult cuModuleUnload(CudaModule) {
  if (current.empty()) return kInvalidContext;
  --live_objects;
  return kCudaSuccess;
}
CudaResult cuModuleGetFunction(CudaFunction* function, CudaModule module, const char* name) {
  if (current.empty()) return kInvalidContext;
  ++functions_asked;
  // Of the PTX that was loaded, and of what runs here instead of it.
  const std::string entry = std::string(".entry ") + name + "(";
  if (std::strstr(reinterpret_cast<const char*>(module), entry.c_str()) == nullptr ||
      !IsHostKernel(name)) {
    return kNotFound;
  }
  static std::mutex mu;
  static auto* functions = new std::map<std::string, FakeFunction>;
  std::lock_guard lock(mu);
  *function = reinterpret_cast<CudaFunction>(
      &functions->try_emplace(name, FakeFunction{name}).first->second);
  return kCudaSuccess;
}
CudaResult cuLaunchKernel(CudaFunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                          unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                          CudaStream stream, void** arguments, void** extra) {
  AwaitLock();
  if (current.empty()) return kInvalidContext;
  if (grid_x == 0 || grid_y == 0 || grid_y > 65535 || grid_z != 1 || block_x == 0 ||
      block_x > 1024 || block_y != 1 || block_z != 1 || shared != 0 || extra != nullptr) {
    return kCudaInvalidValue;
  }
  const std::string name = reinterpret_cast<FakeFunction*>(function)->name;
  if (name == "coordd_gate") {
    const uint32_t* word = *static_cast<const uint32_t**>(arguments[0]);
    const uint64_t limit = *static_cast<uint64_t*>(arguments[1]);
    StreamOf(stream).Push([word, limit] { RunHostGate(word, limit); });
    return kCudaSuccess;
  }
  if (name == "coordd_seal") {
    const auto rows = *static_cast<unsigned*>(arguments[3]);
    auto outputs = std::make_shared<HostTable>();
    std::memcpy(outputs->rows, arguments[0], rows * sizeof(outputs->rows[0]));
    const uint32_t* word = *static_cast<const uint32_t**>(arguments[1]);
    const uint64_t limit = *static_cast<uint64_t*>(arguments[2]);
    StreamOf(stream).Push([outputs, word, limit, rows, threads = block_x] {
      RunHostSeal(threads, *outputs, word, limit, rows);
    });
    return kCudaSuccess;
  }
  // Only the rows that the grid has: the others are not initialised.
  auto table = std::make_shared<HostTable>();
  std::memcpy(table->rows, arguments[0], grid_y * sizeof(table->rows[0]));
  const double factor = name == "coordd_copy" ? 1.0 : *static_cast<double*>(arguments[1]);
  if (name.rfind("coordd_scale_", 0) == 0) ++scalings;
  StreamOf(stream).Push([name, table, factor, grid = HostGrid{grid_x, grid_y, block_x}] {
    RunHostKernel(name, grid, *table, factor);
  });
  return kCudaSuccess;
}

}  // extern "C"
// NOLINTEND
