// The communicator of a generation that is over, for the next one to be made of. (io)
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "worker/gpu/nccl/device_claim.h"
#include "worker/gpu/nccl/nccl_communicator.h"

namespace coordd {

// A communicator of all ranks of a generation, with nothing on the device and nothing registered.
// One owner at a time; ended with this object unless taken.
class KeptCommunicator {
 public:
  // `clock` outlives it.
  KeptCommunicator(std::shared_ptr<NcclCommunicator> communicator, int64_t batches, Clock& clock)
      : batches_(batches), clock_(clock), communicator_(std::move(communicator)) {}
  ~KeptCommunicator();  // flushes and frees it; within the watchdog's limits
  KeptCommunicator(const KeptCommunicator&) = delete;
  KeptCommunicator& operator=(const KeptCommunicator&) = delete;

  const NcclPlace& place() const { return communicator_->place(); }
  // What this rank tells the others of it; `generation`: in which it was made.
  KeptClaim Describe(int64_t generation) const {
    return {generation, place().rank, place().size, batches_};
  }
  std::shared_ptr<NcclCommunicator> Take() { return std::move(communicator_); }

 private:
  // Constant after construction.
  const int64_t batches_;  // that this rank has given it
  Clock& clock_;

  // Touched by the owner's thread.
  std::shared_ptr<NcclCommunicator> communicator_;
};

// What all survivors have agreed on (DecideOnDevices).
struct ShrinkPlan {
  // nullptr: this rank has none any more, which it tells the others when it comes to that.
  std::unique_ptr<KeptCommunicator> from;
  std::vector<int> excluded;  // its ranks that are gone
};

}  // namespace coordd
