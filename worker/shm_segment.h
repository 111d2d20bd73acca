// Memory that processes of one node share, without a name: it ends with the last process that has
// it, however that ends. (io)
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/unique_fd.h"

namespace coordd {

// A mapped memfd, sealed so that its size never changes: whoever maps it cannot be killed (SIGBUS)
// by another process that truncates it. Movable; unmaps itself.
class ShmSegment {
 public:
  ShmSegment() = default;
  ShmSegment(ShmSegment&& other) noexcept { *this = std::move(other); }
  ShmSegment& operator=(ShmSegment&& other) noexcept;
  ~ShmSegment();

  // New memory, all zero; pages are there once they are touched. RESOURCE_EXHAUSTED.
  static absl::StatusOr<ShmSegment> Create(int64_t size_bytes);
  // What is handed over by who has none: empty. RESOURCE_EXHAUSTED.
  static absl::StatusOr<UniqueFd> CreateNone();
  // Another process's. PERMISSION_DENIED: it is not sealed or has another size.
  static absl::StatusOr<ShmSegment> Map(UniqueFd fd, int64_t size_bytes);
  // Another process's, of whatever size it was sealed at. PERMISSION_DENIED: it is not sealed.
  static absl::StatusOr<ShmSegment> MapAll(UniqueFd fd);

  absl::Span<std::byte> bytes() const { return bytes_; }
  // To hand over. Only of Create; -1 otherwise.
  int fd() const { return fd_.get(); }
  // The memory stays mapped; the descriptor is no longer needed once all have it.
  void CloseFd() { fd_ = UniqueFd(); }

 private:
  static absl::StatusOr<absl::Span<std::byte>> MapShared(int fd, int64_t size_bytes);

  UniqueFd fd_;
  absl::Span<std::byte> bytes_;
};

}  // namespace coordd
