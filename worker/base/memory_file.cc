#include "worker/base/memory_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "worker/base/arena_allocator.h"

namespace coordd {
namespace {

constexpr int64_t kPage = ArenaAllocator::kGranularityBytes;

size_t PagesOf(int64_t size_bytes) {
  return static_cast<size_t>((size_bytes + kPage - 1) / kPage * kPage);
}

}  // namespace

absl::Status CheckFileRange(const FileRange& range) {
  const auto refuse = [&range](auto... words) {
    return absl::InvalidArgumentError(absl::StrCat("file descriptor ", range.fd, " ", words...));
  };
  struct stat status = {};
  if (fstat(range.fd, &status) != 0) return refuse("is not open");
  struct statfs system = {};
  if (fstatfs(range.fd, &system) == 0 && system.f_type == HUGETLBFS_MAGIC)
    return refuse("has huge pages, expected a memfd without MFD_HUGETLB");
  const int seals = fcntl(range.fd, F_GET_SEALS);
  if (seals < 0) return refuse("is not a memfd: other processes cannot map private pages");
  if ((seals & F_SEAL_SHRINK) == 0)
    return refuse("can be made smaller while others use it, expected F_SEAL_SHRINK");
  if (range.offset_bytes < 0 || range.offset_bytes % kPage != 0)
    return refuse("at offset ", range.offset_bytes, ", expected a multiple of ", kPage);
  if (range.size_bytes <= 0 || range.offset_bytes > status.st_size ||
      range.size_bytes > status.st_size - range.offset_bytes) {
    return refuse("has ", static_cast<int64_t>(status.st_size), " bytes, expected at least 1 and ",
                  range.size_bytes, " from offset ", range.offset_bytes, " on");
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::Span<std::byte>> MapFileRange(const FileRange& range, std::byte* address) {
  const size_t size = PagesOf(range.size_bytes);
  const int flags = MAP_SHARED | (address == nullptr ? 0 : MAP_FIXED);
  void* const mapped =
      mmap(address, size, PROT_READ | PROT_WRITE, flags, range.fd, range.offset_bytes);
  if (mapped == MAP_FAILED) {
    const absl::StatusCode code = errno == EACCES || errno == EPERM
                                      ? absl::StatusCode::kInvalidArgument
                                      : absl::StatusCode::kResourceExhausted;
    return absl::Status(
        code, absl::StrCat(range.size_bytes, " bytes of a memfd cannot be mapped ",
                           "for reading and writing: ", absl::ErrnoToStatus(errno, "").ToString()));
  }
  madvise(mapped, size, MADV_DONTFORK);
  madvise(mapped, size, MADV_DONTDUMP);
  return absl::MakeSpan(static_cast<std::byte*>(mapped), static_cast<size_t>(range.size_bytes));
}

void MapNothing(absl::Span<std::byte> bytes) {
  const size_t size = PagesOf(static_cast<int64_t>(bytes.size()));
  mmap(bytes.data(), size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
       0);
}

FileMapping::~FileMapping() {
  if (!bytes_.empty()) munmap(bytes_.data(), PagesOf(static_cast<int64_t>(bytes_.size())));
}

}  // namespace coordd
