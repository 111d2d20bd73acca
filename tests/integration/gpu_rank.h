// A rank of a job whose tensors are in GPU memory, and what its scenarios (gpu_ranks.cc) ask of it.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "coordd/coordd.h"
#include "worker/gpu/cuda/device_handles.h"
#include "worker/interfaces/idle_wait.h"

namespace coordd {

[[noreturn]] inline void Fail(const std::string& what) {
  std::printf("FAILED %s\n", what.c_str());
  std::fflush(stdout);
  std::_Exit(1);
}
inline void Require(bool holds, const std::string& what) {
  if (!holds) Fail(what);
}
inline void RequireOk(coordd_status_t status, const std::string& what) {
  if (status != COORDD_OK)
    Fail(what + ": " + coordd_status_name(status) + " " + coordd_last_error());
}

class RankOnDevice {
 public:
  explicit RankOnDevice(int32_t device) {
    RequireOk(coordd_worker_start(nullptr, &worker_), "start");
    rank_ = coordd_rank(worker_);
    size_ = coordd_size(worker_);
    device_ = device >= 0 ? device : coordd_local_rank(worker_) % runtime_->device_count();
    stream_ = std::make_unique<DeviceStream>(DeviceStream::Create(*runtime_, device_).value());
  }
  ~RankOnDevice() {
    stream_.reset();
    coordd_worker_destroy(worker_);
  }

  int32_t rank() const { return rank_; }
  int32_t size() const { return size_; }
  coordd_worker_t* worker() const { return worker_; }
  void* stream() const { return stream_->get(); }
  int32_t device() const { return device_; }
  DeviceRuntime& runtime() const { return *runtime_; }

  // Memory of the device, written on this rank's stream: the host does not wait for that.
  template <typename T>
  T* Upload(const std::vector<T>& values) {
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
    memory_.push_back(DeviceMemory::Allocate(*runtime_, device_, bytes).value());
    std::byte* const at = memory_.back().data();
    if (!CopyAsync(*runtime_, device_, at, values.data(), bytes, stream_->get()).ok())
      Fail("copy to the device");
    return reinterpret_cast<T*>(at);
  }
  // What the stream sees there, behind everything that it waits for.
  template <typename T>
  std::vector<T> Download(const void* from, size_t count) {
    const auto bytes = static_cast<int64_t>(count * sizeof(T));
    const DeviceMemory pinned = DeviceMemory::AllocatePinned(*runtime_, device_, bytes).value();
    if (!CopyAsync(*runtime_, device_, pinned.data(), from, bytes, stream_->get()).ok())
      Fail("copy from the device");
    Synchronize();
    std::vector<T> values(count);
    if (count > 0) std::memcpy(values.data(), pinned.data(), count * sizeof(T));
    return values;
  }
  void Synchronize() {
    DeviceEvent event = DeviceEvent::Create(*runtime_, device_).value();
    Require(event.Record(stream_->get()).ok(), "record");
    IdleWait idle(1, 1);
    while (!event.Happened().value()) idle.Wait();
  }

  coordd_tensor_t Tensor(const char* name, coordd_dtype_t dtype, const void* input, void* output,
                         const int64_t* shape, int32_t ndim = 1) const {
    coordd_tensor_t tensor = COORDD_TENSOR_INIT;
    tensor.name = name;
    tensor.input = input;
    tensor.output = output;
    tensor.dtype = dtype;
    tensor.shape = shape;
    tensor.ndim = ndim;
    tensor.device_kind = COORDD_CUDA;
    tensor.device_index = device_;
    tensor.stream = stream_->get();
    return tensor;
  }
  // Every other work is waited for by the stream, the others by this thread.
  void Finish(coordd_work_t* work) {
    const bool by_stream = ++finished_ % 2 == 0;
    RequireOk(by_stream ? coordd_work_wait_on_stream(work, stream_->get(), -1)
                        : coordd_work_wait(work, -1),
              coordd_work_name(work));
  }
  // With COORDD_ON_FAILURE=raise: enters the generation that follows.
  void EnterNext() {
    coordd_placement_t placement = COORDD_PLACEMENT_INIT;
    RequireOk(coordd_worker_await_generation(worker_, kPatienceSeconds, &placement),
              "the next generation");
    rank_ = placement.rank;
    size_ = placement.size;
  }
  // The same at a point that all have agreed on.
  void ChangeMembers() {
    coordd_placement_t placement = COORDD_PLACEMENT_INIT;
    RequireOk(coordd_worker_change_members(worker_, kPatienceSeconds, &placement), "new members");
    rank_ = placement.rank;
    size_ = placement.size;
  }
  void ForgetMemory() {
    Synchronize();
    memory_.clear();
  }

 private:
  static constexpr double kPatienceSeconds = 300;  // against hangs only

  coordd_worker_t* worker_ = nullptr;
  int32_t rank_ = 0, size_ = 0, device_ = 0;
  std::shared_ptr<DeviceRuntime> runtime_ = DeviceRuntime::Open().value();
  std::unique_ptr<DeviceStream> stream_;
  std::vector<DeviceMemory> memory_;
  int finished_ = 0;
};

// The first element of a result, step by step, as it was when a stream had waited for it: copied by
// the device when it comes there, and looked at by the host when that has happened. All memory is
// there from the beginning, since to free some is to wait for the device.
class ResultLog {
 public:
  ResultLog(DeviceRuntime& runtime, int32_t device, void* stream)
      : runtime_(runtime),
        device_(device),
        stream_(static_cast<CudaStream>(stream)),
        memory_(DeviceMemory::AllocatePinned(runtime, device, kSteps * sizeof(float)).value()) {
    while (events_.size() < kSteps) events_.push_back(DeviceEvent::Create(runtime, device).value());
  }

  void Note(const float* result) {
    if (noted_ - checked_ == kSteps) return;  // the host is that far ahead
    const size_t at = noted_++ % kSteps;
    Require(CopyAsync(runtime_, device_, values() + at, result, sizeof(float), stream_).ok() &&
                events_[at].Record(stream_).ok(),
            "copy from the device");
  }
  // What the device has come to.
  void Check(float expected) {
    while (checked_ < noted_ && events_[checked_ % kSteps].Happened().value())
      Require(values()[checked_++ % kSteps] == expected, "a wrong result was read");
  }
  void Forget() { checked_ = noted_; }

 private:
  static constexpr size_t kSteps = 256;
  float* values() const { return reinterpret_cast<float*>(memory_.data()); }

  DeviceRuntime& runtime_;
  const int32_t device_;
  const CudaStream stream_;
  DeviceMemory memory_;
  std::vector<DeviceEvent> events_;
  size_t noted_ = 0, checked_ = 0;
};

template <typename T>
std::vector<T> Filled(size_t count, T value) {
  return std::vector<T>(count, value);
}

template <typename T>
void Expect(const std::vector<T>& found, const std::vector<T>& expected, const char* what) {
  for (size_t i = 0; i < expected.size(); ++i) {
    if (i < found.size() && found[i] == expected[i]) continue;
    Fail(std::string(what) + ": element " + std::to_string(i) + " is " +
         (i < found.size() ? std::to_string(found[i]) : "missing") + ", expected " +
         std::to_string(expected[i]));
  }
  Require(found.size() == expected.size(), std::string(what) + ": too many elements");
}

}  // namespace coordd
