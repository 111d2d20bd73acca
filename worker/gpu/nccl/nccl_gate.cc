#include "worker/gpu/nccl/nccl_gate.h"

#include <new>
#include <utility>

#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "worker/interfaces/idle_wait.h"

namespace coordd {
namespace {

// How long a device may take to come through, once nothing is held; aborted kernels end at once.
constexpr absl::Duration kDrainLimit = absl::Seconds(2);

}  // namespace

absl::StatusOr<std::unique_ptr<NcclGate>> NcclGate::Create(DeviceRuntime& runtime, Clock& clock,
                                                           int32_t device, absl::Duration limit) {
  COORDD_ASSIGN_OR_RETURN(DeviceStream stream, DeviceStream::Create(runtime, device));
  COORDD_ASSIGN_OR_RETURN(DeviceKernels kernels, DeviceKernels::Load(runtime, device));
  COORDD_ASSIGN_OR_RETURN(DeviceEvent through, DeviceEvent::Create(runtime, device));
  COORDD_ASSIGN_OR_RETURN(DeviceEvent drained, DeviceEvent::Create(runtime, device));
  COORDD_ASSIGN_OR_RETURN(DeviceMemory memory,
                          DeviceMemory::AllocatePinned(runtime, device, sizeof(uint32_t)));
  return std::unique_ptr<NcclGate>(
      new NcclGate(clock, device, limit,
                   OnDevice{std::move(stream), std::move(kernels), std::move(through),
                            std::move(drained), std::move(memory)}));
}

NcclGate::NcclGate(Clock& clock, int32_t device, absl::Duration limit, OnDevice on_device)
    : clock_(clock),
      device_(device),
      limit_(limit),
      on_device_(std::make_unique<OnDevice>(std::move(on_device))),
      word_(new (on_device_->memory.data()) std::atomic<uint32_t>(kGateOpen)) {}

NcclGate::~NcclGate() {
  Pass();
  MutexLock lock(&mu_);
  if (drained_) return;
  COORDD_LOG(kError, "device ", device_,
             " has not come through its stream after an abort: four bytes stay behind");
  on_device_.release();
}

absl::Status NcclGate::Record(CudaStream stream, DeviceEvent& end) {
  OnDevice& on = *on_device_;
  {
    MutexLock lock(&through_mu_);
    COORDD_RETURN_IF_ERROR(on.through.Record(stream));
  }
  COORDD_RETURN_IF_ERROR(on.stream.Wait(on.through.get()));
  COORDD_RETURN_IF_ERROR(on.kernels.Gate(word_, on.stream.get(), limit_));
  return end.Record(on.stream.get());
}

void NcclGate::Open() {
  MutexLock lock(&mu_);
  uint32_t held = kGateHeld;
  if (word_->compare_exchange_strong(held, kGatePassed)) drained_ = false;
}

void NcclGate::Pass() {
  Open();
  MutexLock lock(&mu_);
  if (!drained_) drained_ = AwaitDrained();
}

bool NcclGate::AwaitDrained() {
  if (!on_device_->drained.Record(on_device_->stream.get()).ok()) return false;
  const absl::Time limit = clock_.Now() + kDrainLimit;
  IdleWait idle(1, 1);
  while (clock_.Now() < limit) {
    const absl::StatusOr<bool> happened = on_device_->drained.Happened();
    if (!happened.ok()) return false;
    if (*happened) return true;
    idle.Wait();
  }
  return false;
}

}  // namespace coordd
