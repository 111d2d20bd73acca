// NCCL without coordd. (io)
#pragma once

#include <cstdint>
#include <functional>

#include "bench/gpu/device_clock.h"
#include "common/base/environment.h"
#include "worker/gpu/nccl/nccl_api.h"

namespace coordd::bench {

// A communicator of all ranks, blocking, on float32, with sums: what it is given is launched by the
// calling thread, where NCCL makes a thread for each call on coordd's. One thread. What fails ends
// the process.
class BareNccl {
 public:
  // `share`: brings what rank 0 has in these bytes to all.
  BareNccl(const Environment& environment, DeviceClock& device, int32_t rank, int32_t size,
           const std::function<void(void* bytes, int64_t count)>& share);
  ~BareNccl();
  BareNccl(const BareNccl&) = delete;
  BareNccl& operator=(const BareNccl&) = delete;

  // On the device's stream. `count`: elements of the larger of the two buffers.
  void Allreduce(const float* input, float* output, int64_t count);
  void Broadcast(float* buffer, int64_t count);  // from rank 0
  void Allgather(const float* input, float* output, int64_t count);
  void ReduceScatter(const float* input, float* output, int64_t count);
  // `calls` in one group.
  void Grouped(const std::function<void()>& calls);

 private:
  // One call, or one group; returns when it has been enqueued.
  void Call(const std::function<NcclResult()>& call);

  DeviceClock& device_;
  const int64_t size_;
  NcclFunctions nccl_;
  NcclComm comm_ = nullptr;
  bool grouped_ = false;
};

}  // namespace coordd::bench
