#include "common/base/memory_limit.h"

#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace coordd {
namespace {

// SIZE_MAX: none is set, or this is no cgroup v2.
size_t ControlGroupBound() {
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    absl::string_view path = line;
    if (!absl::ConsumePrefix(&path, "0::")) continue;
    std::ifstream bound(absl::StrCat("/sys/fs/cgroup", path, "/memory.max"));
    std::string text;
    size_t bytes = 0;
    if (std::getline(bound, text) && absl::SimpleAtoi(text, &bytes)) return bytes;
  }
  return SIZE_MAX;
}

size_t AddressSpaceLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return SIZE_MAX;
  return static_cast<size_t>(limit.rlim_cur);
}

size_t ResidentLimit() {
  const size_t machine = static_cast<size_t>(std::max(sysconf(_SC_PHYS_PAGES), 1L)) *
                         static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return std::min(machine, ControlGroupBound());
}

// Stacks of 8 MiB and heaps of threads that are still to begin, with which a coordd has 760 MiB.
constexpr size_t kThreadsNeed = size_t{448} << 20;

// Pages of the address space, and resident ones.
struct Pages {
  size_t mapped = 0, resident = 0;
};

Pages OwnPages() {
  Pages pages;
  std::ifstream("/proc/self/statm") >> pages.mapped >> pages.resident;
  return pages;
}

constexpr size_t kLookEvery = 1 << 20, kCallCosts = kLookEvery / 16;

}  // namespace

size_t BufferQuota() {
  constexpr size_t kLeast = size_t{16} << 20;
  const size_t quota = ResidentLimit() / 4;
  const size_t limit = AddressSpaceLimit();
  if (limit == SIZE_MAX) return quota;
  const size_t taken =
      OwnPages().mapped * static_cast<size_t>(sysconf(_SC_PAGESIZE)) + kThreadsNeed;
  return std::min(quota, std::max(kLeast, (limit - std::min(limit, taken)) / 6));
}

void SaveAddressSpace() {
  if (AddressSpaceLimit() != SIZE_MAX) mallopt(M_ARENA_MAX, 2);
}

size_t ResidentBytes() { return OwnPages().resident * static_cast<size_t>(sysconf(_SC_PAGESIZE)); }
size_t MappedBytes() { return OwnPages().mapped * static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

size_t UnusedBytes() { return mallinfo2().fordblks; }

absl::Status RoomToBegin() {
  constexpr size_t kNeeded = kThreadsNeed;
  void* room =
      mmap(nullptr, kNeeded, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the address space is limited to ", AddressSpaceLimit() >> 20,
        " MiB (ulimit -v), of which less than ", kNeeded >> 20,
        " MiB are left for threads and buffers; expected at least 600 MiB, or no limit"));
  }
  munmap(room, kNeeded);
  return absl::OkStatus();
}

absl::Status MemoryGuard::Room(size_t bytes) {
  MutexLock lock(&mu_);
  const size_t cost = std::max(bytes, kCallCosts);
  if (until_look_ < cost) {
    until_look_ = kLookEvery;
    seen_ = Look();
  }
  until_look_ -= std::min(cost, until_look_);
  return seen_;
}

absl::Status MemoryGuard::Look() const {
  static const size_t page_bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  static const size_t limits[] = {AddressSpaceLimit(), ResidentLimit()};
  const Pages own = OwnPages();
  const size_t pages[] = {own.mapped, own.resident};
  for (int i = 0; i < 2; ++i) {
    const size_t has = pages[i] * page_bytes, most = limits[i] - limits[i] / 4;
    if (has < most) continue;
    const size_t used = has - std::min(has, unused_());
    if (used < most) continue;
    return absl::ResourceExhaustedError(
        absl::StrCat("coordd uses ", used >> 20, " MiB of the ", limits[i] >> 20,
                     i == 0 ? " MiB of address space" : " MiB of memory",
                     " that it may have, and keeps the rest: nothing more is stored"));
  }
  return absl::OkStatus();
}

}  // namespace coordd
