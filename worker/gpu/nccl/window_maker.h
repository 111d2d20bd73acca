// A symmetric window, from the wish to its end: all ranks of a communicator make it together.
#pragma once

#include <cstddef>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "worker/gpu/nccl/nccl_communicator.h"

namespace coordd {

// Of a communicator, for one thread: one window at a time.
class WindowMaker {
 public:
  using Region = absl::Span<std::byte>;

  // REQUIRES: as NcclCommunicator::RegisterWindow; none is wanted.
  void Want(Region memory) { memory_ = memory; }
  bool wanted() const { return !memory_.empty(); }
  // Begins to make it the first time, then asks whether that is over. DEADLINE_EXCEEDED: `limit` is
  // over since it was begun, and a rank has not come. REQUIRES: wanted().
  absl::StatusOr<bool> Advance(NcclCommunicator& communicator, absl::Time now,
                               absl::Duration limit);
  // When it is over: what is wanted no longer. NcclCommunicator::HasWindow says what became of it.
  Region Take() {
    begun_ = false;
    return std::exchange(memory_, {});
  }

 private:
  Region memory_;
  bool begun_ = false;
  absl::Time by_;  // when it has begun: until then the others have to come
};

}  // namespace coordd
