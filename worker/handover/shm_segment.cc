#include "worker/handover/shm_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace coordd {
namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

absl::Status NoMemory(int64_t size_bytes, absl::string_view call) {
  return absl::ErrnoToStatus(
      ENOMEM, absl::StrCat(call, " of ", size_bytes, " bytes of shared memory failed with ",
                           absl::ErrnoToStatus(errno, "").ToString()));
}

// AMD's processors from Zen on look for a line of the first-level cache by a hash of bits 12 to 27
// of its address, each of the lower eight of them with its mirror image among the upper eight, and
// of two lines at one place in their pages with one hash only one can be there (M. Lipp et al.,
// "Take A Way: Exploring the Security Implications of AMD's Cache Way Predictors", ASIA CCS 2020).
// The kernel puts large mappings at distances of many powers of two, so that it was a matter of
// luck whether a rank could read and write its own slice and its neighbour's in turns: on an EPYC
// 1.2 us for 64 KiB, or 6.5. So bits 21 to 27 are the number's, spread so that blocks whose size is
// a power of two do not meet, and bits 12 to 20 are 0: large pages stay possible.
constexpr uintptr_t kHashedBytes = uintptr_t{1} << 28;
uintptr_t PlaceOf(int32_t number) {
  constexpr uintptr_t kStep = uintptr_t{37} << 21;  // odd: 128 numbers have as many places
  return static_cast<uintptr_t>(number) * kStep % kHashedBytes;
}

// Addresses for it, with nothing there; nullptr: there is no room for that.
void* ReservePlace(size_t size, int32_t number) {
  void* const room = mmap(nullptr, size + kHashedBytes, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return nullptr;
  char* const begin = static_cast<char*>(room);
  const uintptr_t at = reinterpret_cast<uintptr_t>(room) % kHashedBytes;
  const uintptr_t before = (PlaceOf(number) + kHashedBytes - at) % kHashedBytes;
  if (before > 0) munmap(begin, before);
  munmap(begin + before + size, kHashedBytes - before);
  return begin + before;
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

absl::StatusOr<ShmSegment> ShmSegment::Create(int64_t size_bytes, int32_t number) {
  ShmSegment segment;
  // The name is for people who read /proc/PID/maps; it need not be unique.
  segment.fd_ = OwnedFd(memfd_create("coordd", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!segment.fd_.valid()) return NoMemory(size_bytes, "memfd_create");
  if (ftruncate(segment.fd_.get(), size_bytes) != 0) return NoMemory(size_bytes, "ftruncate");
  if (fcntl(segment.fd_.get(), F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) != 0)
    return NoMemory(size_bytes, "sealing");
  COORDD_ASSIGN_OR_RETURN(segment.bytes_, MapShared(segment.fd_.get(), size_bytes, number));
  return segment;
}

absl::StatusOr<OwnedFd> ShmSegment::CreateNone() {
  OwnedFd fd(memfd_create("coordd", MFD_CLOEXEC));
  if (!fd.valid()) return NoMemory(0, "memfd_create");
  return fd;
}

absl::StatusOr<ShmSegment> ShmSegment::Map(OwnedFd fd, int64_t size_bytes, int32_t number) {
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  struct stat status = {};
  if (seals < 0 || (seals & kSizeSeals) != kSizeSeals || fstat(fd.get(), &status) != 0 ||
      status.st_size != size_bytes) {
    return absl::PermissionDeniedError(
        absl::StrCat("what was handed over is not sealed memory of ", size_bytes, " bytes (size ",
                     static_cast<int64_t>(status.st_size), ", seals ", seals, ")"));
  }
  ShmSegment segment;
  COORDD_ASSIGN_OR_RETURN(segment.bytes_, MapShared(fd.get(), size_bytes, number));
  return segment;
}

absl::StatusOr<ShmSegment> ShmSegment::MapAll(OwnedFd fd, int32_t number) {
  // Once it is sealed its size is what it was: Map looks at the seals.
  struct stat status = {};
  if (fstat(fd.get(), &status) != 0) status.st_size = 0;
  return Map(std::move(fd), static_cast<int64_t>(status.st_size), number);
}

absl::StatusOr<absl::Span<std::byte>> ShmSegment::MapShared(int fd, int64_t size_bytes,
                                                            int32_t number) {
  const size_t size = static_cast<size_t>(size_bytes);
  void* const place = number == kAnywhere ? nullptr : ReservePlace(size, number);
  // After mlockall(MCL_FUTURE) the kernel makes all pages of what is mapped, but for what cannot be
  // accessed: an arena is as large as the machine's memory.
  void* const memory =
      mmap(place, size, PROT_NONE, MAP_SHARED | (place == nullptr ? 0 : MAP_FIXED), fd, 0);
  if (memory == MAP_FAILED) {
    const absl::Status failed = NoMemory(size_bytes, "mmap");
    if (place != nullptr) munmap(place, size);
    return failed;
  }
  munlock(memory, size);
  if (mprotect(memory, size, PROT_READ | PROT_WRITE) != 0) {
    const absl::Status failed = NoMemory(size_bytes, "mprotect");
    munmap(memory, size);
    return failed;
  }
  return absl::MakeSpan(static_cast<std::byte*>(memory), size);
}

}  // namespace coordd
