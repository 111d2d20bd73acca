#include "worker/shm_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace coordd {
namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

absl::Status NoMemory(int64_t size_bytes, absl::string_view call) {
  return absl::ErrnoToStatus(
      ENOMEM, absl::StrCat(call, " of ", size_bytes, " bytes of shared memory failed with ",
                           absl::ErrnoToStatus(errno, "").ToString()));
}

}  // namespace

ShmSegment& ShmSegment::operator=(ShmSegment&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

ShmSegment::~ShmSegment() {
  if (!bytes_.empty()) munmap(bytes_.data(), bytes_.size());
}

absl::StatusOr<ShmSegment> ShmSegment::Create(int64_t size_bytes) {
  ShmSegment segment;
  // The name is for people who read /proc/PID/maps; it need not be unique.
  segment.fd_ = UniqueFd(memfd_create("coordd", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!segment.fd_.valid()) return NoMemory(size_bytes, "memfd_create");
  if (ftruncate(segment.fd_.get(), size_bytes) != 0) return NoMemory(size_bytes, "ftruncate");
  if (fcntl(segment.fd_.get(), F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) != 0)
    return NoMemory(size_bytes, "sealing");
  COORDD_ASSIGN_OR_RETURN(segment.bytes_, MapShared(segment.fd_.get(), size_bytes));
  return segment;
}

absl::StatusOr<UniqueFd> ShmSegment::CreateNone() {
  UniqueFd fd(memfd_create("coordd", MFD_CLOEXEC));
  if (!fd.valid()) return NoMemory(0, "memfd_create");
  return fd;
}

absl::StatusOr<ShmSegment> ShmSegment::Map(UniqueFd fd, int64_t size_bytes) {
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  struct stat status = {};
  if (seals < 0 || (seals & kSizeSeals) != kSizeSeals || fstat(fd.get(), &status) != 0 ||
      status.st_size != size_bytes) {
    return absl::PermissionDeniedError(
        absl::StrCat("what was handed over is not sealed memory of ", size_bytes, " bytes (size ",
                     static_cast<int64_t>(status.st_size), ", seals ", seals, ")"));
  }
  ShmSegment segment;
  COORDD_ASSIGN_OR_RETURN(segment.bytes_, MapShared(fd.get(), size_bytes));
  return segment;
}

absl::StatusOr<ShmSegment> ShmSegment::MapAll(UniqueFd fd) {
  // Once it is sealed its size is what it was: Map looks at the seals.
  struct stat status = {};
  if (fstat(fd.get(), &status) != 0) status.st_size = 0;
  return Map(std::move(fd), static_cast<int64_t>(status.st_size));
}

absl::StatusOr<absl::Span<std::byte>> ShmSegment::MapShared(int fd, int64_t size_bytes) {
  const size_t size = static_cast<size_t>(size_bytes);
  // After mlockall(MCL_FUTURE) the kernel makes all pages of what is mapped, but for what cannot be
  // accessed: an arena is as large as the machine's memory.
  void* const memory = mmap(nullptr, size, PROT_NONE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return NoMemory(size_bytes, "mmap");
  munlock(memory, size);
  if (mprotect(memory, size, PROT_READ | PROT_WRITE) != 0) {
    const absl::Status failed = NoMemory(size_bytes, "mprotect");
    munmap(memory, size);
    return failed;
  }
  return absl::MakeSpan(static_cast<std::byte*>(memory), size);
}

}  // namespace coordd
