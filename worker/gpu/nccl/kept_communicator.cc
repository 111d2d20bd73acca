#include "worker/gpu/nccl/kept_communicator.h"

#include <atomic>

#include "worker/gpu/nccl/nccl_watchdog.h"

namespace coordd {

KeptCommunicator::~KeptCommunicator() {
  if (communicator_ == nullptr) return;
  static std::atomic<uint32_t> gate = kGateOpen;  // of a stream that there is not
  NcclWatchdog watchdog(clock_, &gate);
  watchdog.Watch(std::move(communicator_));
}  // its end flushes

}  // namespace coordd
