// Which memory the communicators of this process know.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <utility>

#include "absl/types/span.h"
#include "common/base/mutex.h"
#include "common/protocol/types.h"

namespace coordd {

class NcclCommunicator;

// Memory that a communicator has registered must not be freed before NCCL has let go of it, which
// is told here by nobody but who calls NCCL: not when a generation has ended, but when its
// communicators have. Thread-safe.
class KnownMemory {
 public:
  using Region = absl::Span<const std::byte>;
  static KnownMemory& OfProcess();

  void Add(const NcclCommunicator& holder, ProcessSetId group, Region region);
  void Remove(const NcclCommunicator& holder, const std::byte* begin);
  // It will let go of all that it knows by itself.
  void NoteEnding(const NcclCommunicator& holder);
  // NCCL has let go of all that it knew.
  void RemoveAll(const NcclCommunicator& holder);

  // Whether a communicator of the group knows what overlaps with it.
  bool Knows(ProcessSetId group, Region region);
  struct Holder {
    ProcessSetId group;
    bool ending = false;
  };
  // Of what overlaps; one that is not ending, if there is one.
  std::optional<Holder> HolderOf(Region region);

 private:
  struct Known {
    Region region;
    Holder holder;
  };
  using Key = std::pair<const NcclCommunicator*, const std::byte*>;

  Mutex mu_;
  std::map<Key, Known> known_ ABSL_GUARDED_BY(mu_);
};

}  // namespace coordd
