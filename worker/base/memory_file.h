// A program's own memory in a file without a name (memfd), as it is given to be mapped. (io)
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace coordd {

// Bytes of a memfd, from `offset_bytes` on. The descriptor is the program's.
struct FileRange {
  int fd = -1;
  int64_t offset_bytes = 0;
  int64_t size_bytes = 0;
};

// Whether other processes can map it and be sure that it stays: a memfd that cannot shrink
// (F_SEAL_SHRINK), in pages of the usual size, that has all these bytes, the first of them at a
// page's begin. INVALID_ARGUMENT: what it is instead.
absl::Status CheckFileRange(const FileRange& range);

// Maps it, whole pages, for reading and writing; at `address`, in place of what is mapped there, or
// anywhere if that is nullptr. Children of a fork and core dumps do not have it. INVALID_ARGUMENT:
// it cannot be written; RESOURCE_EXHAUSTED: too many mappings.
absl::StatusOr<absl::Span<std::byte>> MapFileRange(const FileRange& range, std::byte* address);

// Puts nothing in the place of what is mapped there, so that who touches it ends with SIGSEGV. The
// addresses stay taken.
void MapNothing(absl::Span<std::byte> bytes);

// A mapping with an owner. Movable; unmaps itself.
class FileMapping {
 public:
  FileMapping() = default;
  explicit FileMapping(absl::Span<std::byte> bytes) : bytes_(bytes) {}
  FileMapping(FileMapping&& other) noexcept { *this = std::move(other); }
  FileMapping& operator=(FileMapping&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~FileMapping();

 private:
  absl::Span<std::byte> bytes_;
};

}  // namespace coordd
