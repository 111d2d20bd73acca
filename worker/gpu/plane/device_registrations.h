// Memory of the program that NCCL is to know, on its way from a call to the device's order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/mutex.h"
#include "common/protocol/types.h"
#include "worker/execute/batch_job.h"
#include "worker/gpu/nccl/nccl_backend.h"

namespace coordd {

// NCCL wants all ranks of a communicator to give registered memory to a call, or none. So a
// registration is a batch of its own, the marker: a small allgather, which has one place in the
// order of all ranks. What each of them expects under the marker's name is registered there.
//
// Of one generation. Thread-safe.
class DeviceRegistrations {
 public:
  // Of a set. Each costs NCCL descriptors and, with InfiniBand, keys of the card.
  static constexpr size_t kRegionsMax = 64;
  using Region = absl::Span<std::byte>;

  // Returns the name of the marker that is to be submitted; equal on all ranks, who call alike.
  // INVALID_ARGUMENT: it overlaps with what is there. RESOURCE_EXHAUSTED.
  absl::StatusOr<std::string> Expect(ProcessSetId process_set, Region region);
  // When the marker is through, however: whether it was launched. If not, nothing is expected.
  bool WasApplied(const std::string& name);
  // At the marker's place; nothing for other batches. FAILED_PRECONDITION: this rank does not
  // expect it, so the others have what it has not; or it has joined, and has no memory of the
  // program's to give where the others have.
  absl::Status Apply(const BatchJob& batch, NcclBackend& backend);
  // INVALID_ARGUMENT: it is not registered there.
  absl::StatusOr<Region> Remove(ProcessSetId process_set, const std::byte* memory);

 private:
  struct Expected {
    ProcessSetId process_set;
    Region region;
    bool applied = false;
  };
  absl::Status ApplyMarker(const std::string& name, bool absent, NcclBackend& backend);

  // Guarded by mu_.
  Mutex mu_;
  std::map<std::string, Expected> expected_ ABSL_GUARDED_BY(mu_);
  std::map<ProcessSetId, int64_t> next_ ABSL_GUARDED_BY(mu_);
  std::map<ProcessSetId, std::vector<Region>> regions_ ABSL_GUARDED_BY(mu_);  // also expected ones
};

}  // namespace coordd
