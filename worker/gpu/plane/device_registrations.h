// Memory of the program that NCCL is to know, on its way from a call to the device's order.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
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
// order of all ranks. What each of them expects under the marker's name is registered there; the
// name also says whether all make a symmetric window of it first, on which they have agreed.
//
// Of one generation. Thread-safe.
class DeviceRegistrations {
 public:
  // Of a set. Each costs NCCL descriptors and, with InfiniBand, keys of the card.
  static constexpr size_t kRegionsMax = 64;
  using Region = absl::Span<std::byte>;

  // Takes a number of this rank's, in the order of its calls, and ends it by End.
  int64_t Begin(ProcessSetId process_set);
  // What is to be registered. INVALID_ARGUMENT: it overlaps with what is there. RESOURCE_EXHAUSTED.
  absl::Status Give(ProcessSetId process_set, int64_t number, Region region);
  // One goes behind the other, so that what a rank says of its windows holds until it has one more:
  // nothing while one that has begun before is not over, or memory is on its way out. Then DigestOf
  // the set's windows, none of which leaves until End.
  std::optional<int64_t> TakeTurn(ProcessSetId process_set, int64_t number);
  // Returns the name of the marker that is to be submitted, another one each time. `meeting`: that
  // of all ranks (MemoryMeetings), whose number they have alike.
  std::string Expect(ProcessSetId process_set, int64_t number, int64_t meeting, bool as_window);
  // When the marker is through, however: whether it was launched.
  bool WasApplied(ProcessSetId process_set, int64_t number);
  // It is over. What was not applied is not expected any more.
  void End(ProcessSetId process_set, int64_t number);
  // Before a marker is launched: what is to be windows first; nothing for other batches.
  std::vector<Region> WindowsOf(const BatchJob& batch);
  // At the marker's place; nothing for other batches. FAILED_PRECONDITION: this rank does not
  // expect it, so the others have what it has not; or it has joined, and has no memory of the
  // program's to give where the others have.
  absl::Status Apply(const BatchJob& batch, NcclBackend& backend);
  // True the first time.
  bool IsFirstWithoutWindow() {
    MutexLock lock(&mu_);
    return !std::exchange(told_, true);
  }
  // Memory on its way out, until Forget.
  struct Leaving {
    Region region;
    std::shared_ptr<std::atomic<bool>> gone;  // to be set when NCCL does not know it any more
    bool first = false;                       // nobody sees to that yet
  };
  // INVALID_ARGUMENT: it is not registered there. FAILED_PRECONDITION: its registration is not
  // over, or, of a window, another one's in the set, for which the ranks compare the windows they
  // have.
  absl::StatusOr<Leaving> Remove(ProcessSetId process_set, const std::byte* memory);
  void Forget(ProcessSetId process_set, const Leaving& leaving);

 private:
  struct Registration {
    Region region;                  // empty: not given yet
    std::optional<bool> as_window;  // once it is expected
    int64_t meeting = 0;            // likewise
    int expected = 0;               // so often
    bool has_turn = false;
    bool applied = false;
    bool ended = false;
    std::shared_ptr<std::atomic<bool>> gone;  // of memory that leaves
  };
  using Registrations = std::map<int64_t, Registration>;  // by number
  struct Set {
    int64_t next = 0;
    Registrations registrations;  // also what has begun
  };
  static std::string NameOf(ProcessSetId process_set, const Registration& registration);
  // nullptr: it is no marker's, or nothing is expected.
  Registration* Find(ProcessSetId process_set, absl::string_view name)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status ApplyMarker(ProcessSetId process_set, const std::string& name, bool absent,
                           NcclBackend& backend);

  // Guarded by mu_.
  Mutex mu_;
  std::map<ProcessSetId, Set> sets_ ABSL_GUARDED_BY(mu_);
  bool told_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace coordd
