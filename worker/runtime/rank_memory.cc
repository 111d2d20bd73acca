#include "worker/runtime/rank_memory.h"

#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/counted.h"
#include "common/base/status_macros.h"

namespace coordd {
namespace {

// Beyond what a process can address.
constexpr int64_t kMaxBytes = int64_t{1} << 47;

}  // namespace

absl::StatusOr<void*> RankMemory::Allocate(int64_t size_bytes,
                                           std::shared_ptr<GenerationPlane> plane, bool maps) {
  if (size_bytes <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("memory of ", size_bytes, " bytes, expected at least 1"));
  }
  Block block;
  if (maps) block.arena = plane->executor->arena();
  if (block.arena != nullptr) {
    absl::StatusOr<absl::Span<std::byte>> mapped = block.arena->Allocate(size_bytes);
    if (mapped.ok()) {
      block.bytes = *mapped;
      block.plane = std::move(plane);
    } else {
      block.arena = nullptr;
      block.why_private = std::string(mapped.status().message());
    }
  }
  if (block.arena == nullptr) {
    if (size_bytes <= kMaxBytes) block.own = AlignedBuffer(size_bytes);
    if (block.own.data() == nullptr)
      return absl::ResourceExhaustedError(absl::StrCat("no memory for ", size_bytes, " bytes"));
    block.bytes = block.own.span();
    std::memset(block.bytes.data(), 0, block.bytes.size());
  }
  std::byte* const begin = block.bytes.data();
  MutexLock lock(&mu_);
  blocks_.emplace(begin, std::move(block));
  return begin;
}

absl::StatusOr<RankMemory::Block> RankMemory::Take(void* memory, bool is_file) {
  MutexLock lock(&mu_);
  const auto found = blocks_.find(static_cast<const std::byte*>(memory));
  if (found == blocks_.end() || found->second.is_file != is_file) {
    return absl::InvalidArgumentError(
        absl::StrCat("the memory to ", is_file ? "unregister" : "free", " is not what ",
                     is_file ? "coordd_register_memfd" : "coordd_alloc",
                     " has returned, or that has been done already"));
  }
  Block block = std::move(found->second);
  blocks_.erase(found);
  return block;
}

bool RankMemory::MayBeWritten(const Block& block) {
  return block.plane == nullptr || block.plane->end.ended() ||
         block.plane->comm_failed.load(std::memory_order_acquire);
}

absl::Status RankMemory::Free(void* memory) {
  COORDD_ASSIGN_OR_RETURN(const Block block, Take(memory, /*is_file=*/false));
  if (block.arena == nullptr) return absl::OkStatus();
  if (MayBeWritten(block)) {
    block.arena->GiveBackPages(block.bytes);
  } else {
    block.arena->Free(block.bytes);
  }
  return absl::OkStatus();
}

absl::StatusOr<void*> RankMemory::Register(const FileRange& file,
                                           std::shared_ptr<GenerationPlane> plane, bool maps,
                                           absl::Time deadline) {
  Block block;
  block.is_file = true;
  if (maps) block.arena = plane->executor->arena();
  if (block.arena != nullptr && block.arena->files() != nullptr) {
    COORDD_ASSIGN_OR_RETURN(block.bytes, block.arena->files()->Map(file, *plane->store, deadline));
    block.plane = std::move(plane);
  } else {
    block.arena = nullptr;
    COORDD_RETURN_IF_ERROR(CheckFileRange(file));
    COORDD_ASSIGN_OR_RETURN(block.bytes, MapFileRange(file, nullptr));
    block.own_file = FileMapping(block.bytes);
  }
  std::byte* const begin = block.bytes.data();
  MutexLock lock(&mu_);
  blocks_.emplace(begin, std::move(block));
  return begin;
}

absl::Status RankMemory::Unregister(void* memory, absl::Time deadline) {
  COORDD_ASSIGN_OR_RETURN(const Block block, Take(memory, /*is_file=*/true));
  if (block.arena == nullptr) return absl::OkStatus();
  if (!MayBeWritten(block))
    return block.arena->files()->Unmap(block.bytes, *block.plane->store, deadline);
  block.arena->files()->Forget(block.bytes);
  return absl::OkStatus();
}

absl::Status RankMemory::CheckMapped(const void* memory, int64_t size_bytes) const {
  const std::byte* const begin = static_cast<const std::byte*>(memory);
  const std::less_equal<const std::byte*> not_behind;
  MutexLock lock(&mu_);
  const auto after = blocks_.upper_bound(begin);
  if (size_bytes >= 0 && after != blocks_.begin()) {
    const Block& block = std::prev(after)->second;
    const std::byte* const end = block.bytes.data() + block.bytes.size();
    if (not_behind(begin, end) && size_bytes <= end - begin) {
      if (block.plane != nullptr && !block.plane->end.ended()) return absl::OkStatus();
      return absl::FailedPreconditionError(absl::StrCat(
          "memory of ", Counted(size_bytes, "byte"), " is ",
          block.is_file ? "coordd_register_memfd" : "coordd_alloc",
          "'s, but private to this process: ",
          block.arena != nullptr ? "it is of a generation that has ended, expected memory that is "
                                   "allocated, or registered, anew"
          : block.why_private.empty() ? "this worker maps nothing (with other ranks on the node, "
                                        "COORDD_TRANSPORT other than "
                                        "shm and COORDD_ON_FAILURE other than continue it does)"
                                      : block.why_private));
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "memory of ", Counted(size_bytes, "byte"),
      " is private to this process, other processes cannot map ",
      "it; expected a part of what coordd_alloc or coordd_register_memfd has returned"));
}

absl::Status RankMemory::TakeBack() {
  MutexLock lock(&mu_);
  for (auto& [begin, block] : blocks_) {
    if (block.plane == nullptr || !block.plane->end.ended()) continue;
    COORDD_RETURN_IF_ERROR(block.arena->MakePrivate(block.bytes));
    block.plane = nullptr;
  }
  return absl::OkStatus();
}

}  // namespace coordd
