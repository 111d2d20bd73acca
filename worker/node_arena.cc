#include "worker/node_arena.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "worker/peer_status.h"
#include "worker/shm_handover.h"

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
  int64_t size_bytes = std::min(memory_bytes, kAddressBytesMax / local_ranks);
  if (file_limit_bytes >= 0) size_bytes = std::min(size_bytes, file_limit_bytes);
  // The program needs its share, too.
  if (address_limit_bytes >= 0)
    size_bytes = std::min(size_bytes, address_limit_bytes / 2 / local_ranks);
  return RoundedDown(size_bytes);
}

absl::Status NodeArena::Connect(const GroupLayout& layout, Store& store, absl::Time deadline) {
  const int32_t self =
      ToInt(layout.self()) - ToInt(layout.first_rank_of(layout.node_of(layout.self())));
  if (memories_.empty()) COORDD_RETURN_IF_ERROR(CreateAndHandOver(layout, store, deadline));
  own_ = memories_[static_cast<size_t>(self)];
  MutexLock lock(&mu_);
  allocator_.emplace(BoardBytes(), RoundedDown(static_cast<int64_t>(own_.size())));
  return absl::OkStatus();
}

absl::Status NodeArena::CreateAndHandOver(const GroupLayout& layout, Store& store,
                                          absl::Time deadline) {
  const int32_t node = layout.node_of(layout.self());
  const int32_t local_ranks = layout.ranks_on(node);
  const Rank first = layout.first_rank_of(node);
  int64_t size_bytes = RoundedDown(options_.size_bytes);
  if (size_bytes == 0) {
    const int64_t memory_bytes =
        static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<int64_t>(sysconf(_SC_PAGESIZE));
    size_bytes = SizeBytesFor(local_ranks, memory_bytes, LimitOf(RLIMIT_FSIZE), LimitOf(RLIMIT_AS));
  }
  absl::StatusOr<ShmSegment> own = absl::ResourceExhaustedError("");
  for (; size_bytes >= kSizeBytesMin; size_bytes = RoundedDown(size_bytes / 2)) {
    own = ShmSegment::Create(size_bytes);
    if (own.ok()) break;
  }
  if (!own.ok()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("shared memory of ", size_bytes,
                     " bytes is all that this process may have (ulimit -f and -v ",
                     "limit it), expected at least ", kSizeBytesMin, "; ", own.status().message()));
  }

  ShmHandoverOptions handover;
  handover.self = layout.self();
  for (int32_t i = 0; i < local_ranks; ++i) {
    if (Rank{ToInt(first) + i} != layout.self()) handover.others.push_back(Rank{ToInt(first) + i});
  }
  handover.segment_fd = own->fd();
  handover.aborted = &aborted_;
  handover.key_prefix = kArenaKeyPrefix;
  COORDD_ASSIGN_OR_RETURN(std::vector<ShmPeer> found,
                          HandOverSegments(handover, store, clock_, deadline));
  own->CloseFd();
  segments_.resize(static_cast<size_t>(local_ranks));
  segments_[static_cast<size_t>(ToInt(layout.self()) - ToInt(first))] = *std::move(own);
  for (ShmPeer& peer : found) {
    absl::StatusOr<ShmSegment> segment = ShmSegment::MapAll(std::move(peer.segment));
    if (!segment.ok()) return PeerLost(peer.rank, segment.status().message());
    if (static_cast<int64_t>(segment->bytes().size()) < kSizeBytesMin)
      return PeerLost(peer.rank, "its shared memory is smaller than it may be");
    segments_[static_cast<size_t>(ToInt(peer.rank) - ToInt(first))] = *std::move(segment);
  }
  for (const ShmSegment& segment : segments_) {
    memories_.push_back(segment.bytes());
    // A child of a fork does not keep the memory alive that its parent's end should free.
    madvise(segment.bytes().data(), segment.bytes().size(), MADV_DONTFORK);
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::Span<std::byte>> NodeArena::Allocate(int64_t size_bytes) {
  std::optional<ArenaAllocator::Block> block;
  {
    MutexLock lock(&mu_);
    COORDD_CHECK(allocator_.has_value());  // Connect comes first
    block = allocator_->Allocate(size_bytes);
  }
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
  allocator_->Free(block.data() - own_.data());
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
