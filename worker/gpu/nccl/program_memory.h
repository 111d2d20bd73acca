// Memory of the program that NCCL knows, so that it may move from and to it without a copy.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/protocol/types.h"
#include "worker/gpu/nccl/nccl_communicator.h"

namespace coordd {

// By group; a region is registered with each of its communicators. NCCL wants all ranks of one to
// have registered what they give to a call, or none: what it knows here changes at a place in the
// order of batches that is the same on all of them.
//
// Touched by one thread, but for bytes().
class ProgramMemory {
 public:
  using Region = absl::Span<std::byte>;

  void Add(ProcessSetId group, Region region);
  bool Has(ProcessSetId group) const { return groups_.count(group) > 0; }
  // With a communicator of the group, which has been `offered` so many: what it has not, and what
  // is no window to it. NCCL's error: the others may have it.
  absl::Status RegisterWith(ProcessSetId group, NcclCommunicator& communicator, size_t* offered);
  // Nobody uses it any more. `released` is called by LetGo.
  void Release(ProcessSetId group, Region region, std::function<void()> released);
  bool releasing() const { return !releases_.empty(); }
  // REQUIRES: nothing is on the device, for which NCCL might wait. `deregister` gets what has the
  // number `index` of its group's; those behind it move up.
  using Deregister = absl::FunctionRef<void(ProcessSetId group, size_t index, Region region)>;
  void LetGo(Deregister deregister);
  // Its communicators have ended.
  void EndGroup(ProcessSetId group);

  int64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }  // thread-safe

 private:
  struct Waiting {
    ProcessSetId group;
    Region region;
    std::function<void()> released;
  };
  void Count(int64_t bytes) { bytes_.fetch_add(bytes, std::memory_order_relaxed); }

  std::map<ProcessSetId, std::vector<Region>> groups_;  // none is empty
  std::vector<Waiting> releases_;
  std::atomic<int64_t> bytes_ = 0;
};

}  // namespace coordd
