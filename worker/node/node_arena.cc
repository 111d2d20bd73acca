#include "worker/node/node_arena.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"

namespace coordd {
namespace {

constexpr absl::string_view kArenaKeyPrefix = "arena";

// Of the 47 bits of address space that a process has, what all arenas of a node may take.
constexpr int64_t kAddressBytesMax = int64_t{1} << 46;

int64_t LimitOf(decltype(RLIMIT_AS) resource) {
  rlimit limit = {};
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return -1;
  return static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, INT64_MAX));
}

int64_t RoundedDown(int64_t size_bytes) {
  return size_bytes / ArenaAllocator::kGranularityBytes * ArenaAllocator::kGranularityBytes;
}

int64_t BoardBytes() {
  constexpr int64_t kPage = ArenaAllocator::kGranularityBytes;
  return (NodeBoard::SizeBytes() + kPage - 1) / kPage * kPage;
}

}  // namespace

int64_t NodeArena::SizeBytesFor(int32_t local_ranks, int64_t memory_bytes, int64_t file_limit_bytes,
                                int64_t address_limit_bytes) {
  int64_t size_bytes =
      std::min(memory_bytes + kSizeBytesMinOptional, kAddressBytesMax / local_ranks);
  if (file_limit_bytes >= 0) size_bytes = std::min(size_bytes, file_limit_bytes);
  // The program needs its share, too.
  if (address_limit_bytes >= 0)
    size_bytes = std::min(size_bytes, address_limit_bytes / 2 / local_ranks);
  return RoundedDown(size_bytes);
}

absl::Status NodeArena::Connect(const GroupLayout& layout, Store& store, absl::Time deadline) {
  const int32_t self =
      ToInt(layout.self()) - ToInt(layout.first_rank_of(layout.node_of(layout.self())));
  if (memories_.empty()) {
    COORDD_RETURN_IF_ERROR(CreateAndHandOver(layout, store, deadline));
  } else {
    const int32_t node = layout.node_of(layout.self());
    const auto first = memories_.begin() + ToInt(layout.first_rank_of(node));
    memories_ = std::vector<NodeMemory>(first, first + layout.ranks_on(node));
  }
  if (memories_.empty()) return absl::OkStatus();
  own_ = memories_[static_cast<size_t>(self)];
  const int64_t begin = BoardBytes();
  const int64_t end = RoundedDown(static_cast<int64_t>(own_.size()));
  staging_end_ = begin + std::min(kStagingBytes, RoundedDown((end - begin) / 2));
  if (!segments_.empty()) {
    const Rank first = layout.first_rank_of(layout.node_of(layout.self()));
    files_.emplace(*this, layout.self(), first, clock_, aborted_);
  }
  MutexLock lock(&mu_);
  staging_.emplace(begin, staging_end_);
  rest_.emplace(staging_end_, end);
  return absl::OkStatus();
}

absl::StatusOr<ShmSegment> NodeArena::Create(int32_t local_ranks, int32_t self) const {
  int64_t size_bytes = RoundedDown(options_.size_bytes);
  if (size_bytes == 0) {
    const int64_t address_limit_bytes = LimitOf(RLIMIT_AS);
    if (address_limit_bytes >= 0 && !options_.required) {
      return absl::ResourceExhaustedError(absl::StrCat("the address space is limited to ",
                                                       address_limit_bytes, " bytes (ulimit -v)"));
    }
    const int64_t memory_bytes =
        static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<int64_t>(sysconf(_SC_PAGESIZE));
    size_bytes =
        SizeBytesFor(local_ranks, memory_bytes, LimitOf(RLIMIT_FSIZE), address_limit_bytes);
  }
  const int64_t least_bytes = options_.required ? kSizeBytesMin : kSizeBytesMinOptional;
  std::string why;
  for (; size_bytes >= least_bytes; size_bytes = RoundedDown(size_bytes / 2)) {
    absl::StatusOr<ShmSegment> made = ShmSegment::Create(size_bytes, self);
    if (made.ok()) return made;
    why = absl::StrCat("; ", made.status().message());
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("shared memory of ", size_bytes,
                   " bytes is all that this process may have (ulimit -f and -v ",
                   "limit it), expected at least ", least_bytes, why));
}

absl::Status NodeArena::CreateAndHandOver(const GroupLayout& layout, Store& store,
                                          absl::Time deadline) {
  const int32_t node = layout.node_of(layout.self());
  const int32_t local_ranks = layout.ranks_on(node);
  const Rank first = layout.first_rank_of(node);
  absl::StatusOr<ShmSegment> own = Create(local_ranks, ToInt(layout.self()) - ToInt(first));
  OwnedFd none;
  if (!own.ok()) {
    COORDD_ASSIGN_OR_RETURN(none, ShmSegment::CreateNone());
  }

  ShmHandoverOptions handover;
  handover.self = layout.self();
  for (int32_t i = 0; i < local_ranks; ++i) {
    if (Rank{ToInt(first) + i} != layout.self()) handover.others.push_back(Rank{ToInt(first) + i});
  }
  handover.segment_fd = own.ok() ? own->fd() : none.get();
  handover.aborted = &aborted_;
  handover.key_prefix = kArenaKeyPrefix;
  COORDD_ASSIGN_OR_RETURN(std::vector<ShmPeer> found,
                          HandOverSegments(handover, store, clock_, deadline));
  segments_.resize(static_cast<size_t>(local_ranks));
  std::string objection(own.status().message());
  if (own.ok()) {
    own->CloseFd();
    segments_[static_cast<size_t>(ToInt(layout.self()) - ToInt(first))] = *std::move(own);
    objection = MapAll(found, first);
  }
  // A rank alone cannot know what the others have met with.
  COORDD_ASSIGN_OR_RETURN(const std::optional<ShmObjection> met,
                          ObjectionOfAny(handover, found, objection, clock_, deadline));
  if (met.has_value()) {
    segments_.clear();
    const std::string why = absl::StrCat("rank ", ToInt(met->rank), ": ", met->why);
    if (options_.required) return absl::ResourceExhaustedError(why);
    if (layout.self() == first) {
      COORDD_LOG(kWarning, "ranks ", ToInt(first), " to ", ToInt(first) + local_ranks - 1,
                 " exchange messages through shared memory, slower than on memory that they have ",
                 "mapped from each other: ", why);
    }
    return absl::OkStatus();
  }
  for (const ShmSegment& segment : segments_) {
    memories_.push_back(segment.bytes());
    // A child of a fork does not keep the memory alive that its parent's end should free, and a
    // core dump does not read, that is make, all the pages that nobody has touched.
    madvise(segment.bytes().data(), segment.bytes().size(), MADV_DONTFORK);
    madvise(segment.bytes().data(), segment.bytes().size(), MADV_DONTDUMP);
  }
  return absl::OkStatus();
}

std::string NodeArena::MapAll(std::vector<ShmPeer>& peers, Rank first) {
  for (ShmPeer& peer : peers) {
    struct stat status = {};
    // Whoever has none says why itself.
    if (fstat(peer.segment.get(), &status) == 0 && status.st_size == 0) continue;
    const int32_t index = ToInt(peer.rank) - ToInt(first);
    absl::StatusOr<ShmSegment> segment = ShmSegment::MapAll(std::move(peer.segment), index);
    if (!segment.ok()) {
      return absl::StrCat("the memory of rank ", ToInt(peer.rank),
                          " cannot be mapped: ", segment.status().message());
    }
    if (static_cast<int64_t>(segment->bytes().size()) < kSizeBytesMin)
      return absl::StrCat("the memory of rank ", ToInt(peer.rank), " is smaller than it may be");
    segments_[static_cast<size_t>(index)] = *std::move(segment);
  }
  return "";
}

absl::StatusOr<absl::Span<std::byte>> NodeArena::Allocate(int64_t size_bytes) {
  MutexLock lock(&mu_);
  return AllocateFrom(rest_, size_bytes);
}

absl::StatusOr<absl::Span<std::byte>> NodeArena::AllocateStaging(int64_t size_bytes) {
  MutexLock lock(&mu_);
  return AllocateFrom(staging_, size_bytes);
}

absl::StatusOr<absl::Span<std::byte>> NodeArena::AllocateFrom(
    std::optional<ArenaAllocator>& allocator, int64_t size_bytes) {
  COORDD_CHECK(allocator.has_value());  // Connect comes first
  const std::optional<ArenaAllocator::Allocation> block = allocator->Allocate(size_bytes);
  if (block)
    return own_.subspan(static_cast<size_t>(block->offset_bytes), static_cast<size_t>(size_bytes));
  return absl::ResourceExhaustedError(absl::StrCat("no room for ", size_bytes,
                                                   " bytes in this rank's shared memory of ",
                                                   own_.size(), " bytes"));
}

absl::Span<std::byte> NodeArena::PagesOf(absl::Span<std::byte> block) const {
  constexpr size_t kPage = ArenaAllocator::kGranularityBytes;
  return {block.data(), (block.size() + kPage - 1) / kPage * kPage};
}

void NodeArena::Free(absl::Span<std::byte> block) {
  // Before somebody else can have it.
  GiveBackPages(block);
  MutexLock lock(&mu_);
  const int64_t offset = block.data() - own_.data();
  (offset < staging_end_ ? staging_ : rest_)->Free(offset);
}

void NodeArena::GiveBackPages(absl::Span<std::byte> block) {
  // Of a test's private memory it gives nothing back, which does no harm.
  if (segments_.empty()) return;
  const absl::Span<std::byte> pages = PagesOf(block);
  // What MakePrivate has replaced is not a file's.
  if (madvise(pages.data(), pages.size(), MADV_REMOVE) != 0)
    madvise(pages.data(), pages.size(), MADV_DONTNEED);
}

absl::Status NodeArena::MakePrivate(absl::Span<std::byte> block) {
  if (segments_.empty()) return absl::OkStatus();
  const absl::Span<std::byte> pages = PagesOf(block);
  void* const copy = mmap(nullptr, pages.size(), PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (copy != MAP_FAILED) {
    std::memcpy(copy, pages.data(), pages.size());
    // The sanitizers' mremap loses the new address.
    const int64_t moved = syscall(SYS_mremap, copy, pages.size(), pages.size(),
                                  MREMAP_MAYMOVE | MREMAP_FIXED, pages.data());
    if (moved != -1) return absl::OkStatus();
    munmap(copy, pages.size());
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("no memory for a private copy of ", block.size(), " bytes"));
}

}  // namespace coordd
