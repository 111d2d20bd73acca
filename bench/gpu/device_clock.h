// A GPU whose own clock is read, for programs that measure. (io)
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "worker/gpu/cuda/device_handles.h"
#include "worker/gpu/cuda/device_kernels.h"

namespace coordd::bench {

// Ends the process with a sentence on stderr unless it holds.
void Require(bool holds, const std::string& what);

// One device of this process and a stream on it. One thread. What fails ends the process.
class DeviceClock {
 public:
  explicit DeviceClock(int32_t local_rank);
  ~DeviceClock();
  DeviceClock(const DeviceClock&) = delete;
  DeviceClock& operator=(const DeviceClock&) = delete;

  DeviceRuntime& runtime() { return *runtime_; }
  DeviceKernels& kernels() { return kernels_; }
  int32_t device() const { return device_; }
  CudaStream stream() const { return stream_.get(); }
  float* NewBuffer(int64_t bytes);
  void Fill(float* buffer, int64_t count, float value);
  // The first and the last of so many.
  std::pair<float, float> Ends(const float* buffer, int64_t count);
  void Synchronize();

  // How long the device takes, in microseconds, for what `enqueue` leaves on the stream. It begins
  // only when all of that is there, so what the host takes to enqueue it does not count.
  double Time(const std::function<void()>& enqueue);

 private:
  const std::shared_ptr<DeviceRuntime> runtime_;
  const int32_t device_;
  DeviceStream stream_;
  DeviceKernels kernels_;
  DeviceMemory word_;
  std::atomic<uint32_t>* const closed_;
  CudaEvent begin_ = nullptr, end_ = nullptr;
  std::vector<DeviceMemory> buffers_;
};

double Median(std::vector<double> values);

}  // namespace coordd::bench
