// Memory that processes of one node share, without a name: it ends with the last process that has
// it, however that ends. (io)
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/owned_fd.h"

namespace coordd {

// A mapped memfd, sealed so that its size never changes: whoever maps it cannot be killed (SIGBUS)
// by another process that truncates it. Movable; unmaps itself.
class ShmSegment {
 public:
  ShmSegment() = default;
  ShmSegment(ShmSegment&& other) noexcept { *this = std::move(other); }
  ShmSegment& operator=(ShmSegment&& other) noexcept;
  ~ShmSegment();

  // Of segments that one thread works on in turns, such as those of a node's ranks, the number:
  // where in the process it is mapped depends on it, so that the same offsets in them do not drive
  // each other out of the first-level cache (shm_segment.cc). kAnywhere: it does not matter.
  static constexpr int32_t kAnywhere = -1;

  // Makes new memory, all zero; pages are there once they are touched. RESOURCE_EXHAUSTED.
  static absl::StatusOr<ShmSegment> Create(int64_t size_bytes, int32_t number = kAnywhere);
  // Makes what is handed over by who has no memory: an empty file. RESOURCE_EXHAUSTED.
  static absl::StatusOr<OwnedFd> CreateNone();
  // Maps another process's memory. PERMISSION_DENIED: it is not sealed or has another size.
  static absl::StatusOr<ShmSegment> Map(OwnedFd fd, int64_t size_bytes, int32_t number = kAnywhere);
  // Maps another process's memory, of whatever size it was sealed at. PERMISSION_DENIED: it is not
  // sealed.
  static absl::StatusOr<ShmSegment> MapAll(OwnedFd fd, int32_t number = kAnywhere);

  absl::Span<std::byte> bytes() const { return bytes_; }
  // The descriptor to hand over, of a segment from Create; -1 for others.
  int fd() const { return fd_.get(); }
  // The memory stays mapped; the descriptor is no longer needed once all have it.
  void CloseFd() { fd_ = OwnedFd(); }

 private:
  static absl::StatusOr<absl::Span<std::byte>> MapShared(int fd, int64_t size_bytes,
                                                         int32_t number);

  OwnedFd fd_;
  absl::Span<std::byte> bytes_;
};

}  // namespace coordd
