#include "bench/gpu/device_clock.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "worker/interfaces/idle_wait.h"

namespace coordd::bench {

void Require(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "gpu_rank: %s\n", what.c_str());
  std::_Exit(1);
}

namespace {

std::shared_ptr<DeviceRuntime> OpenRuntime() {
  auto runtime = DeviceRuntime::Open();
  Require(runtime.ok(), runtime.status().ToString());
  return *std::move(runtime);
}

template <typename T>
T Made(absl::StatusOr<T> made) {
  Require(made.ok(), made.status().ToString());
  return *std::move(made);
}

}  // namespace

DeviceClock::DeviceClock(int32_t local_rank)
    : runtime_(OpenRuntime()),
      device_(local_rank % runtime_->device_count()),
      stream_(Made(DeviceStream::Create(*runtime_, device_))),
      kernels_(Made(DeviceKernels::Load(*runtime_, device_))),
      word_(Made(DeviceMemory::AllocatePinned(*runtime_, device_, sizeof(uint32_t)))),
      closed_(new (word_.data()) std::atomic<uint32_t>(0)) {
  const auto scope = DeviceScope::Enter(*runtime_, device_);
  Require(runtime_->cuda().EventElapsedTime != nullptr, "the driver has no cuEventElapsedTime");
  for (CudaEvent* event : {&begin_, &end_})
    Require(runtime_->cuda().EventCreate(event, 0) == kCudaSuccess, "an event cannot be made");
}

DeviceClock::~DeviceClock() {
  const auto scope = DeviceScope::Enter(*runtime_, device_);
  for (CudaEvent event : {begin_, end_}) runtime_->cuda().EventDestroy(event);
}

float* DeviceClock::NewBuffer(int64_t bytes) {
  buffers_.push_back(Made(DeviceMemory::Allocate(*runtime_, device_, bytes)));
  return reinterpret_cast<float*>(buffers_.back().data());
}

void DeviceClock::Fill(float* buffer, int64_t count, float value) {
  const std::vector<float> values(static_cast<size_t>(count), value);
  const int64_t bytes = count * static_cast<int64_t>(sizeof(float));
  Require(CopyAsync(*runtime_, device_, buffer, values.data(), bytes, stream()).ok(), "copy");
  Synchronize();
}

std::pair<float, float> DeviceClock::Ends(const float* buffer, int64_t count) {
  const DeviceMemory pinned = Made(DeviceMemory::AllocatePinned(*runtime_, device_, 8));
  auto* const ends = reinterpret_cast<float*>(pinned.data());
  Require(CopyAsync(*runtime_, device_, ends, buffer, 4, stream()).ok() &&
              CopyAsync(*runtime_, device_, ends + 1, buffer + count - 1, 4, stream()).ok(),
          "copy");
  Synchronize();
  return {ends[0], ends[1]};
}

void DeviceClock::Synchronize() {
  DeviceEvent event = Made(DeviceEvent::Create(*runtime_, device_));
  Require(event.Record(stream()).ok(), "record");
  IdleWait idle(1, 1);
  while (!Made(event.Happened())) idle.Wait();
}

double DeviceClock::Time(const std::function<void()>& enqueue) {
  const CudaFunctions& cuda = runtime_->cuda();
  const auto scope = DeviceScope::Enter(*runtime_, device_);
  closed_->store(1);
  Require(kernels_.Gate(closed_, stream()).ok(), "the gate");
  Require(cuda.EventRecord(begin_, stream()) == kCudaSuccess, "record");
  enqueue();
  Require(cuda.EventRecord(end_, stream()) == kCudaSuccess, "record");
  closed_->store(0);
  Synchronize();
  float milliseconds = 0;
  Require(cuda.EventElapsedTime(&milliseconds, begin_, end_) == kCudaSuccess, "elapsed time");
  return static_cast<double>(milliseconds) * 1e3;
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace coordd::bench
