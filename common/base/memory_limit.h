// How much memory this process may have. (io)
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "common/base/mutex.h"

namespace coordd {

// How much buffers of clients may take, before the threads of a coordd have begun: a quarter of the
// memory, of which a control group's bound counts (of the group itself: cgroup v2), and of the
// address space (ulimit -v) a smaller part of what those threads leave. gRPC notices only
// afterwards that its quota is exceeded, by up to as much again.
size_t BufferQuota();

// Has malloc keep few arenas where the address space is limited (ulimit -v): each reserves 64 MiB
// of it, whatever it holds. To be called before there are other threads.
void SaveAddressSpace();

// The memory of this process that is not swapped out, in bytes.
size_t ResidentBytes();
// Its address space in use, in bytes.
size_t MappedBytes();

// Freed and not given back, in bytes.
size_t UnusedBytes();

// RESOURCE_EXHAUSTED: the address space (ulimit -v) has no room for the threads and buffers with
// which a coordd begins; where it runs out among them, gRPC ends the process without a word.
absl::Status RoomToBegin();

// Thread-safe. Asked before something of a client's is kept: std::bad_alloc would end the process,
// and every job with it.
class MemoryGuard {
 public:
  using Asked = size_t (*)();

  // `unused`: how many bytes malloc keeps that were freed. It walks over all of them, with its
  // locks held.
  explicit MemoryGuard(Asked unused = &UnusedBytes) : unused_(unused) {}

  // RESOURCE_EXHAUSTED: less than a quarter of what this process may have is left. The kernel is
  // asked once for each MiB, and each sixteen calls; malloc only where that might be so.
  absl::Status Room(size_t bytes);

 private:
  absl::Status Look() const;

  // Constant after construction.
  const Asked unused_;

  // Guarded by mu_.
  Mutex mu_;
  size_t until_look_ ABSL_GUARDED_BY(mu_) = 0;  // bytes
  absl::Status seen_ ABSL_GUARDED_BY(mu_);
};

}  // namespace coordd
