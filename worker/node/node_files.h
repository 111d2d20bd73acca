// Memory files (memfds) of programs, which all ranks of a node map in each other's arenas. (io)
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/protocol/store.h"
#include "common/protocol/types.h"
#include "worker/base/memory_file.h"
#include "worker/handover/shm_handover.h"

namespace coordd {

class NodeArena;

// A rank's file takes the place of a part of its arena, at the same distance from its begin in
// every process of the node: whoever works on mapped memory need not know of it. That part is not
// given out for anything else again, but for the next file.
//
// Map and Unmap are collective over the ranks of the node, in one order on all; one at a time on a
// rank, the others wait. After a call that has failed because somebody did not take part, the
// ranks may differ in what they have done, and all later ones fail with FAILED_PRECONDITION.
// Thread-safe.
class NodeFiles {
 public:
  // `self`, `first`: of the layout, as is the number of the node's ranks. `arena` is connected; it,
  // `clock` and `aborted`, which ends a call that waits, outlive it.
  NodeFiles(NodeArena& arena, Rank self, Rank first, Clock& clock,
            const std::atomic<bool>& aborted);

  // Each rank gives its own, of any size; returns where it is. INVALID_ARGUMENT: as CheckFileRange
  // and MapFileRange, of this rank's file; FAILED_PRECONDITION: another's, and whose;
  // RESOURCE_EXHAUSTED: there is no room in this rank's arena. Then nothing is mapped anywhere.
  // DEADLINE_EXCEEDED, ABORTED, UNAVAILABLE: as HandOverSegments.
  absl::StatusOr<absl::Span<std::byte>> Map(const FileRange& file, Store& store,
                                            absl::Time deadline);
  // Each rank gives what the same call of Map has returned. FAILED_PRECONDITION: not all have;
  // DEADLINE_EXCEEDED, ABORTED, UNAVAILABLE: as HandOverSegments. In any case this rank does not
  // have it any more. REQUIRES: no collective that is pending uses it.
  absl::Status Unmap(absl::Span<std::byte> bytes, Store& store, absl::Time deadline);
  // Forgets memory of a generation that has ended: this rank does not have it any more, while
  // others may.
  void Forget(absl::Span<std::byte> bytes);

 private:
  // What one Map has mapped in this process, by rank of the node.
  struct Mapped {
    int64_t number = 0;
    std::vector<absl::Span<std::byte>> files;
  };

  absl::StatusOr<absl::Span<std::byte>> MapOwn(const FileRange& file)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<std::byte*> TakeRange(int64_t size_bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void GiveBackRange(std::byte* begin) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<absl::Span<std::byte>> MapOf(const ShmPeer& peer) const;
  ShmHandoverOptions NextHandover() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  size_t IndexOf(Rank rank) const { return static_cast<size_t>(ToInt(rank) - ToInt(first_)); }

  // Constant after construction.
  NodeArena& arena_;
  const Rank self_;
  const Rank first_;
  Clock& clock_;
  const std::atomic<bool>& aborted_;

  // Guarded by mu_, which is held while others are waited for.
  Mutex mu_;
  int64_t calls_ ABSL_GUARDED_BY(mu_) = 0;
  std::string key_prefix_ ABSL_GUARDED_BY(mu_);    // of the call under way
  absl::Status out_of_step_ ABSL_GUARDED_BY(mu_);  // OK: all calls have ended alike
  std::map<const std::byte*, Mapped> mapped_ ABSL_GUARDED_BY(mu_);  // by where the own one is
  std::map<std::byte*, size_t> ranges_ ABSL_GUARDED_BY(mu_);        // of the arena, for files
  std::multimap<size_t, std::byte*> spare_ ABSL_GUARDED_BY(mu_);    // those without a file, by size
};

}  // namespace coordd
