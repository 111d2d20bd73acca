// What docs/design/nccl.md assumes of CUDA's driver, asked of the one at hand, in seconds; a stage
// of tests/gpu/run. One of our gates is held on a stream of its own, as after the loss of a rank.
// For each call of the driver: does it return meanwhile, and if not, which calls of another thread
// do not return either (because the driver keeps its lock)? And which other streams stand still?
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/dynamic_library.h"
#include "worker/gpu/cuda/cuda_api.h"
#include "worker/gpu/cuda/device_kernels.h"

namespace coordd {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kReturns{300};  // a call that has not returned by then waits for the device
constexpr milliseconds kBesideIt{200};
constexpr milliseconds kEnds{10'000};  // after the gate has been opened
constexpr int kRounds = 200;
constexpr int kStreams = 32;

// CUmemAllocationProp.
struct AllocationKind {
  int type = 1;  // pinned
  int handle_types = 0;
  int location_type = 1;  // a device
  int location = 0;
  void* unused = nullptr;
  unsigned char flags[8] = {};
};
static_assert(sizeof(AllocationKind) == 32);

// What coordd does not call, and programs, torch and NCCL do. nullptr: this driver has it not.
struct OtherFunctions {
  CudaResult (*CtxSynchronize)() = nullptr;
  CudaResult (*StreamSynchronize)(CudaStream stream) = nullptr;
  CudaResult (*MemGetAllocationGranularity)(size_t* bytes, const AllocationKind* kind,
                                            int which) = nullptr;
  CudaResult (*MemCreate)(uint64_t* handle, size_t size_bytes, const AllocationKind* kind,
                          uint64_t flags) = nullptr;
  CudaResult (*MemAddressReserve)(CudaPointer* pointer, size_t size_bytes, size_t alignment,
                                  CudaPointer address, uint64_t flags) = nullptr;
  CudaResult (*MemMap)(CudaPointer pointer, size_t size_bytes, size_t offset, uint64_t handle,
                       uint64_t flags) = nullptr;
  CudaResult (*MemUnmap)(CudaPointer pointer, size_t size_bytes) = nullptr;
};

OtherFunctions LoadOthers(const DynamicLibrary& driver) {
  OtherFunctions others;
  const auto find = [&driver](auto& function, const char* symbol) {
    function =
        driver.Function<std::remove_pointer_t<std::remove_reference_t<decltype(function)>>>(symbol);
  };
  find(others.CtxSynchronize, "cuCtxSynchronize");
  find(others.StreamSynchronize, "cuStreamSynchronize");
  find(others.MemGetAllocationGranularity, "cuMemGetAllocationGranularity");
  find(others.MemCreate, "cuMemCreate");
  find(others.MemAddressReserve, "cuMemAddressReserve");
  find(others.MemMap, "cuMemMap");
  find(others.MemUnmap, "cuMemUnmap");
  return others;
}

// A call on a thread of its own.
struct Call {
  std::future<CudaResult> result;
  std::shared_ptr<double> took_ms = std::make_shared<double>(0);
  std::thread thread;

  bool ReturnsWithin(milliseconds limit) const {
    return result.wait_for(limit) == std::future_status::ready;
  }
};

struct Question {
  std::string name;
  std::function<CudaResult()> call;
  std::function<CudaResult()> before = [] { return kCudaSuccess; };
};

class Probe {
 public:
  Probe(CudaFunctions cuda, OtherFunctions others) : cuda_(cuda), others_(others) {}

  void Open() {
    Ok(cuda_.Init(0), "cuInit");
    CudaDevice device = 0;
    Ok(cuda_.DeviceGet(&device, 0), "cuDeviceGet");
    int version = 0;
    char name[256] = "";
    Ok(cuda_.DriverGetVersion(&version), "cuDriverGetVersion");
    Ok(cuda_.DeviceGetName(name, sizeof(name), device), "cuDeviceGetName");
    const char* const connections = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    std::printf("driver %d, %s, CUDA_DEVICE_MAX_CONNECTIONS=%s\n", version, name,
                connections != nullptr ? connections : "(unset)");
    auto begun = Clock::now();
    Ok(cuda_.DevicePrimaryCtxRetain(&context_, device), "cuDevicePrimaryCtxRetain");
    Ok(cuda_.CtxPushCurrent(context_), "cuCtxPushCurrent");
    std::printf("context: %.0f ms\n", MsSince(begun));
    CudaModule module = nullptr;
    for (const char* which : {"first", "second"}) {
      begun = Clock::now();
      Ok(cuda_.ModuleLoadData(&module, kDeviceKernelsPtx), "cuModuleLoadData");
      std::printf("cuModuleLoadData of our kernels, the %s: %.1f ms\n", which, MsSince(begun));
    }
    Ok(cuda_.ModuleGetFunction(&gate_, module, "coordd_gate"), "cuModuleGetFunction");
    int least = 0, greatest = 0;
    Ok(cuda_.CtxGetStreamPriorityRange(&least, &greatest), "cuCtxGetStreamPriorityRange");
    greatest_ = greatest;
    gate_stream_ = NewStream(greatest);
    program_stream_ = NewStream(least);
    void* words = nullptr;
    Ok(cuda_.MemHostAlloc(&words, 4096, kCudaHostPortable | kCudaHostDeviceMap), "cuMemHostAlloc");
    word_ = static_cast<volatile uint32_t*>(words);
    word_[0] = 0;
    word_[1] = 0;
    Ok(cuda_.MemAlloc(&memory_, 1 << 20), "cuMemAlloc");
    event_ = NewEvent(kCudaEventDisableTiming);
    past_ = NewEvent(kCudaEventDisableTiming);
    Ok(cuda_.EventRecord(past_, program_stream_), "cuEventRecord");
    Ok(Launch(program_stream_, 1), "a launch");
    Ok(Launch(gate_stream_, 0), "a launch");
    Drain();
  }

  // NCCL's stream, event, the gate's stream, event, the program's stream.
  void MeasureGate() {
    if (cuda_.EventElapsedTime == nullptr) return;
    const CudaEvent begin = NewEvent(0), end = NewEvent(0);
    const CudaEvent passed = NewEvent(kCudaEventDisableTiming);
    const auto us_each = [&](const std::function<void()>& once) {
      float ms = 0;
      Ok(cuda_.EventRecord(begin, program_stream_), "cuEventRecord");
      for (int i = 0; i < kRounds; ++i) once();
      Ok(cuda_.EventRecord(end, program_stream_), "cuEventRecord");
      Drain();
      Ok(cuda_.EventElapsedTime(&ms, begin, end), "cuEventElapsedTime");
      return ms * 1e3 / kRounds;
    };
    const double built = us_each([&] {
      Ok(cuda_.EventRecord(event_, program_stream_), "cuEventRecord");
      Ok(cuda_.StreamWaitEvent(gate_stream_, event_, 0), "cuStreamWaitEvent");
      Ok(Launch(gate_stream_, 1), "a launch");
      Ok(cuda_.EventRecord(passed, gate_stream_), "cuEventRecord");
      Ok(cuda_.StreamWaitEvent(program_stream_, passed, 0), "cuStreamWaitEvent");
    });
    const double same = us_each([&] { Ok(Launch(program_stream_, 1), "a launch"); });
    std::printf("the gate: %.2f us as built (two streams, two events), %.2f as a kernel alone\n",
                built, same);
  }

  void AskAll() {
    for (const Question& question : Questions()) Ask(question);
  }

  void AskOtherStreams() {
    std::vector<CudaStream> streams;
    for (int i = 0; i < kStreams; ++i) streams.push_back(NewStream(0));
    Hold();
    const int behind_kernel = StandStill(streams);
    Release();
    Hold();
    Ok(cuda_.EventRecord(event_, gate_stream_), "cuEventRecord");
    const CudaStream waits = NewStream(0);
    Ok(cuda_.StreamWaitEvent(waits, event_, 0), "cuStreamWaitEvent");
    Ok(Launch(waits, 1), "a launch");
    const int behind_event = StandStill(streams);
    Release();
    std::printf("# streams of %d that stand still beside a held gate: %d (bar: at most 0) %s\n",
                kStreams, behind_kernel, behind_kernel == 0 ? "met" : "MISSED");
    // With one connection (as Megatron has it) this is all of them.
    std::printf("# streams of %d that stand still beside one that waits for it: %d\n", kStreams,
                behind_event);
  }

 private:
  static double MsSince(Clock::time_point begun) {
    return std::chrono::duration<double, std::milli>(Clock::now() - begun).count();
  }
  void Ok(CudaResult result, const char* what) const {
    if (result == kCudaSuccess) return;
    const char* text = "?";
    cuda_.GetErrorString(result, &text);
    std::printf("driver_probe: %s: error %d (%s)\n", what, result, text);
    std::fflush(stdout);
    std::_Exit(1);
  }
  CudaStream NewStream(int priority) const {
    CudaStream stream = nullptr;
    Ok(cuda_.StreamCreateWithPriority(&stream, kCudaStreamNonBlocking, priority),
       "cuStreamCreateWithPriority");
    return stream;
  }
  CudaEvent NewEvent(unsigned flags) const {
    CudaEvent event = nullptr;
    Ok(cuda_.EventCreate(&event, flags), "cuEventCreate");
    return event;
  }
  CudaResult Launch(CudaStream stream, int word) const {
    const volatile uint32_t* address = word_ + word;
    uint64_t no_limit = 0;
    void* arguments[] = {&address, &no_limit};
    return cuda_.LaunchKernel(gate_, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr);
  }
  // Whether the stream has come to its end within the limit.
  bool Comes(CudaStream stream, milliseconds limit) const {
    const CudaEvent event = NewEvent(kCudaEventDisableTiming);
    Ok(cuda_.EventRecord(event, stream), "cuEventRecord");
    const auto begun = Clock::now();
    CudaResult result = kCudaNotReady;
    while (result == kCudaNotReady && Clock::now() - begun < limit) {
      std::this_thread::yield();
      result = cuda_.EventQuery(event);
    }
    return result == kCudaSuccess;
  }
  void Drain() const {
    for (const CudaStream stream : {gate_stream_, program_stream_})
      Ok(Comes(stream, kEnds) ? kCudaSuccess : kCudaNotReady, "what was given to the device");
  }
  void Hold() const {
    Ok(Launch(gate_stream_, 1), "a launch");
    Drain();
    word_[0] = 1;
    Ok(Launch(gate_stream_, 0), "a launch");
  }
  void Release() const {
    word_[0] = 0;
    Drain();
  }
  int StandStill(const std::vector<CudaStream>& streams) const {
    int count = 0;
    for (const CudaStream stream : streams) {
      Ok(Launch(stream, 1), "a launch");
      count += Comes(stream, milliseconds(50)) ? 0 : 1;
    }
    return count;
  }

  Call Start(std::function<CudaResult()> function) const {
    Call call;
    std::packaged_task<CudaResult()> task(
        [this, function = std::move(function), took_ms = call.took_ms] {
          CudaContext popped = nullptr;
          cuda_.CtxPushCurrent(context_);
          const auto begun = Clock::now();
          const CudaResult result = function();
          *took_ms = MsSince(begun);
          cuda_.CtxPopCurrent(&popped);
          return result;
        });
    call.result = task.get_future();
    call.thread = std::thread(std::move(task));
    return call;
  }
  // False: it never returned. Then its thread is left where it is.
  static bool End(Call& call) {
    const bool ended = call.ReturnsWithin(kEnds);
    if (ended) {
      call.thread.join();
    } else {
      static auto* const left = new std::vector<std::thread>;
      left->push_back(std::move(call.thread));
    }
    return ended;
  }

  void Ask(const Question& question) {
    Ok(question.before(), question.name.c_str());
    Hold();
    Call call = Start(question.call);
    const bool returns = call.ReturnsWithin(kReturns);
    std::string blocked;
    std::vector<Call> beside;
    if (!returns) {
      for (const Question& other : Others()) {
        beside.push_back(Start(other.call));
        if (!beside.back().ReturnsWithin(kBesideIt))
          blocked += (blocked.empty() ? "" : ", ") + other.name;
      }
    }
    word_[0] = 0;
    const bool ended = End(call);
    for (Call& other : beside) End(other);
    Drain();
    if (returns) {
      std::printf("%-40s returns in %.2f ms\n", question.name.c_str(), *call.took_ms);
    } else {
      std::printf("%-40s WAITS for the device%s; meanwhile %s\n", question.name.c_str(),
                  ended ? "" : " (and did not return after it)",
                  blocked.empty() ? "all other calls return"
                                  : ("BLOCKED in another thread: " + blocked).c_str());
    }
    if (ended) {
      const CudaResult result = call.result.get();
      if (result != kCudaSuccess) std::printf("    its result was %d\n", result);
    }
    std::fflush(stdout);
  }

  // What other threads of the runtime and of the program do all the time.
  std::vector<Question> Others() {
    return {
        {"launch", [this] { return Launch(program_stream_, 1); }},
        {"event record", [this] { return cuda_.EventRecord(event_, program_stream_); }},
        {"event query",
         [this] {
           const CudaResult result = cuda_.EventQuery(event_);
           return result == kCudaNotReady ? kCudaSuccess : result;
         }},
        {"wait for an event", [this] { return cuda_.StreamWaitEvent(program_stream_, past_, 0); }},
        {"copy",
         [this] { return cuda_.MemcpyAsync(memory_, memory_ + 4096, 4096, program_stream_); }},
        {"allocation", [this] { return cuda_.MemAlloc(&beside_, 4096); }},
        {"kind of a pointer",
         [this] {
           unsigned kind = 0;
           return cuda_.PointerGetAttribute(&kind, kCudaPointerMemoryType, memory_);
         }},
    };
  }

  std::vector<Question> Questions() {
    std::vector<Question> questions = {
        {"cuMemAlloc of 1 MiB", [this] { return cuda_.MemAlloc(&pointer_, 1 << 20); }},
        {"cuMemFree", [this] { return cuda_.MemFree(pointer_); }},
        {"cuMemAlloc of 512 MiB", [this] { return cuda_.MemAlloc(&pointer_, 512U << 20); }},
        {"cuMemFree of it", [this] { return cuda_.MemFree(pointer_); }},
        {"cuMemHostAlloc", [this] { return cuda_.MemHostAlloc(&pinned_, 1 << 20, 3); }},
        {"cuMemFreeHost", [this] { return cuda_.MemFreeHost(pinned_); }},
        {"cuModuleLoadData", [this] { return cuda_.ModuleLoadData(&module_, kDeviceKernelsPtx); }},
        {"cuModuleGetFunction, the first",
         [this] { return cuda_.ModuleGetFunction(&function_, module_, "coordd_copy"); }},
        {"cuModuleUnload", [this] { return cuda_.ModuleUnload(module_); }},
        {"cuStreamCreateWithPriority",
         [this] {
           return cuda_.StreamCreateWithPriority(&stream_, kCudaStreamNonBlocking, greatest_);
         }},
        {"cuStreamDestroy", [this] { return cuda_.StreamDestroy(stream_); }},
        {"cuEventCreate", [this] { return cuda_.EventCreate(&made_, kCudaEventDisableTiming); }},
        {"cuEventDestroy", [this] { return cuda_.EventDestroy(made_); }},
    };
    if (others_.MemCreate != nullptr && others_.MemUnmap != nullptr) {
      questions.push_back({"cuMemCreate and cuMemMap", [this] { return MapMemory(); }});
      questions.push_back(
          {"cuMemUnmap", [this] { return others_.MemUnmap(mapped_, granularity_); }});
    }
    if (others_.StreamSynchronize != nullptr) {
      questions.push_back({"cuStreamSynchronize of the gate's",
                           [this] { return others_.StreamSynchronize(gate_stream_); }});
    }
    if (others_.CtxSynchronize != nullptr)
      questions.push_back({"cuCtxSynchronize", [this] { return others_.CtxSynchronize(); }});
    return questions;
  }

  // As NCCL, and torch's expandable segments, have it.
  CudaResult MapMemory() {
    const AllocationKind kind;
    uint64_t handle = 0;
    CudaResult result = others_.MemGetAllocationGranularity(&granularity_, &kind, 0);
    if (result == kCudaSuccess) result = others_.MemCreate(&handle, granularity_, &kind, 0);
    if (result == kCudaSuccess) result = others_.MemAddressReserve(&mapped_, granularity_, 0, 0, 0);
    if (result == kCudaSuccess) result = others_.MemMap(mapped_, granularity_, 0, handle, 0);
    return result;
  }

  // Constant after Open.
  const CudaFunctions cuda_;
  const OtherFunctions others_;
  CudaContext context_ = nullptr;
  CudaFunction gate_ = nullptr;
  CudaStream gate_stream_ = nullptr, program_stream_ = nullptr;
  CudaEvent event_ = nullptr, past_ = nullptr;
  volatile uint32_t* word_ = nullptr;  // pinned: of the held gate, and of one that lets pass
  CudaPointer memory_ = 0;
  int greatest_ = 0;
  // What one question makes and a later one ends; each thread that touches them has been waited
  // for.
  CudaPointer pointer_ = 0, mapped_ = 0, beside_ = 0;
  void* pinned_ = nullptr;
  size_t granularity_ = 0;
  CudaModule module_ = nullptr;
  CudaFunction function_ = nullptr;
  CudaStream stream_ = nullptr;
  CudaEvent made_ = nullptr;
};

int Run() {
  const absl::StatusOr<CudaFunctions> cuda = LoadCuda();
  const absl::StatusOr<DynamicLibrary> driver = DynamicLibrary::Open(kCudaDriverLibrary);
  if (!cuda.ok() || !driver.ok()) {
    const std::string why((cuda.ok() ? driver.status() : cuda.status()).message());
    // One that is there and cannot be loaded, or lacks a function, is a failure.
    const bool absent = why.starts_with(std::string(kCudaDriverLibrary) +
                                        ": cannot open shared object file: No such file");
    std::printf("driver_probe: %s: %s\n",
                absent ? "no driver to ask" : "CUDA's driver cannot be used", why.c_str());
    return absent ? 77 : 1;
  }
  Probe probe(*cuda, LoadOthers(*driver));
  probe.Open();
  probe.MeasureGate();
  probe.AskAll();
  probe.AskOtherStreams();
  std::printf("driver_probe: done\n");
  std::fflush(stdout);
  std::_Exit(0);  // a call that never returned has a thread
}

}  // namespace
}  // namespace coordd

int main() { return coordd::Run(); }
