// Memory that a program asks for, so that its collectives need no copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/mutex.h"
#include "worker/base/aligned_buffer.h"
#include "worker/base/memory_file.h"
#include "worker/node/node_arena.h"
#include "worker/runtime/generation_plane.h"

namespace coordd {

// Thread-safe. Blocks of a generation's arena, which all ranks of the node have mapped, or private
// memory where nothing is mapped.
//
// What a failed collective used belongs to its members until all have given up, which nobody here
// knows: a rank that hears of a death late still writes its part of a result. So the range of a
// block that is freed after its generation has ended, or after a comm of it has failed, is not
// given out again, and TakeBack makes what is not freed private.
class RankMemory {
 public:
  // 64-byte aligned, all zero. From the plane's arena, if it has one with room and `maps`.
  // INVALID_ARGUMENT: not even one byte; RESOURCE_EXHAUSTED.
  absl::StatusOr<void*> Allocate(int64_t size_bytes, std::shared_ptr<GenerationPlane> plane,
                                 bool maps);
  // INVALID_ARGUMENT: it is not where a block of Allocate begins.
  absl::Status Free(void* memory);
  // The program's own, where the others have it mapped; private where Allocate's would be, but for
  // an arena without room. Statuses: NodeFiles::Map.
  absl::StatusOr<void*> Register(const FileRange& file, std::shared_ptr<GenerationPlane> plane,
                                 bool maps, absl::Time deadline);
  // INVALID_ARGUMENT: it is not where a block of Register begins; else as NodeFiles::Unmap.
  absl::Status Unregister(void* memory, absl::Time deadline);
  // OK: the ranks of the node have these bytes mapped. INVALID_ARGUMENT: they are in no block;
  // FAILED_PRECONDITION: in one that is private, and why.
  absl::Status CheckMapped(const void* memory, int64_t size_bytes) const;
  // Blocks whose generation has ended keep their addresses and contents, and are private from now
  // on. REQUIRES: nobody writes to them meanwhile, what runs here of that generation has stopped.
  // RESOURCE_EXHAUSTED: some may still be mapped.
  absl::Status TakeBack();

 private:
  struct Block {
    absl::Span<std::byte> bytes;
    AlignedBuffer own;     // without an arena
    FileMapping own_file;  // the same, of Register
    bool is_file = false;
    std::shared_ptr<NodeArena> arena;        // whose addresses they have; nullptr: never mapped
    std::shared_ptr<GenerationPlane> plane;  // nullptr: private
    std::string why_private;                 // with an arena that has no room
  };

  // INVALID_ARGUMENT: there is none.
  absl::StatusOr<Block> Take(void* memory, bool is_file);
  // By members that have not given up yet.
  static bool MayBeWritten(const Block& block);

  // Guarded by mu_.
  mutable Mutex mu_;
  std::map<const std::byte*, Block> blocks_ ABSL_GUARDED_BY(mu_);
};

}  // namespace coordd
