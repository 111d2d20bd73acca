// Memory of each rank of a node that all ranks of the node have mapped. (io)
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/protocol/store.h"
#include "worker/base/arena_allocator.h"
#include "worker/handover/shm_handover.h"
#include "worker/handover/shm_segment.h"
#include "worker/interfaces/group_layout.h"
#include "worker/node/node_files.h"
#include "worker/node/node_lane.h"

namespace coordd {

struct NodeArenaOptions {
  // The size of one rank's arena; 0: as much as the machine has memory, or as the limits of the
  // process allow. Pages exist once they are touched. Ranks may differ.
  int64_t size_bytes = 0;
  // A node on which a rank cannot have an arena, or not map the others', is an error; else its
  // ranks have none. Then little is too little, and where the address space is limited it is left
  // to the program.
  bool required = true;
};

// One sealed memfd per rank, handed over and mapped by all ranks of the node in Connect: after that
// no descriptor travels and nothing is mapped. It begins with the rank's NodeBoard; the rest is
// given out as blocks. Children of a fork do not have it. The memory has no name and ends with the
// last process that has it mapped; who looks at whose end is not the arena's business
// (HostBackend). One thread connects; what follows, and Abort: any.
class NodeArena {
 public:
  // The smallest arena: the board has half of it, and in less fusion buffers would not fit.
  static constexpr int64_t kSizeBytesMin = int64_t{128} << 20;
  // Of an arena that is large enough what lanes have their staging in, which they cannot do
  // without: 1 MiB (NodeCollectiveRun::MaxStagingBytes) for each entry of the board, and 4 MiB for
  // as many lanes between nodes as all comms and schedules that a rank may have. Of a smaller one
  // half.
  static constexpr int64_t kStagingBytes = int64_t{17} << 30;
  // Unless it is required: the board, staging for all its lanes, and something to allocate.
  static constexpr int64_t kSizeBytesMinOptional = kStagingBytes + (int64_t{1} << 30);

  // `clock` outlives it.
  explicit NodeArena(NodeArenaOptions options = {}, Clock& clock = Clock::Real())
      : options_(options), clock_(clock) {}
  // For tests: ranks are threads of one process and share what the process has, by rank of the
  // layout, all zero at first, which outlives the arena.
  explicit NodeArena(std::vector<NodeMemory> memories)
      : clock_(Clock::Real()), memories_(std::move(memories)) {}

  // Of the ranks of this rank's node, which all end up with memories or all without; why is logged.
  // DEADLINE_EXCEEDED: names the ranks that did not show up. RESOURCE_EXHAUSTED: a rank, which is
  // named, has no address space, or a limit (ulimit -f, -v) is too low. UNAVAILABLE, ABORTED as
  // Transport::Connect.
  absl::Status Connect(const GroupLayout& layout, Store& store, absl::Time deadline);
  // Ends a Connect that waits.
  void Abort() { aborted_.store(true, std::memory_order_release); }

  // The ranks' memories in rank order of the node, this one's among them. Empty before Connect, and
  // where the node's ranks have no arenas: then the rest is not to be called.
  const std::vector<NodeMemory>& memories() const { return memories_; }
  NodeBoard own_board() const { return NodeBoard(own_.data()); }
  // Memory of the program's own in arenas; nullptr: none can be mapped.
  NodeFiles* files() { return files_.has_value() ? &*files_ : nullptr; }
  // Allocates from the own arena, 64-byte aligned. RESOURCE_EXHAUSTED.
  absl::StatusOr<absl::Span<std::byte>> Allocate(int64_t size_bytes);
  // Allocates from what is kept for the staging of lanes: there is room however much else is
  // allocated.
  absl::StatusOr<absl::Span<std::byte>> AllocateStaging(int64_t size_bytes);
  // Gives the pages back. REQUIRES: allocated here; no other rank uses it any more.
  void Free(absl::Span<std::byte> block);
  // Frees a block that other ranks may still use: its range is not given out again. What they write
  // takes pages anew.
  void GiveBackPages(absl::Span<std::byte> block);
  // Makes these bytes private, as they are at this moment: from now on only this process has them.
  // The range is not given out again. RESOURCE_EXHAUSTED: nothing has changed.
  absl::Status MakePrivate(absl::Span<std::byte> block);

  // What is asked of the kernel: no more than the machine's memory beside staging, than a file may
  // have, and than the address space holds of as many arenas as the node has ranks. Limits:
  // negative if there is none.
  static int64_t SizeBytesFor(int32_t local_ranks, int64_t memory_bytes, int64_t file_limit_bytes,
                              int64_t address_limit_bytes);

 private:
  absl::StatusOr<ShmSegment> Create(int32_t local_ranks, int32_t self) const;
  absl::Status CreateAndHandOver(const GroupLayout& layout, Store& store, absl::Time deadline);
  // Maps the peers' arenas. Returns what this rank cannot map; empty when that is nothing.
  std::string MapAll(std::vector<ShmPeer>& peers, Rank first);
  absl::StatusOr<absl::Span<std::byte>> AllocateFrom(std::optional<ArenaAllocator>& allocator,
                                                     int64_t size_bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Span<std::byte> PagesOf(absl::Span<std::byte> block) const;

  // Constant after construction.
  const NodeArenaOptions options_;
  Clock& clock_;

  // Thread-safe by itself.
  std::atomic<bool> aborted_ = false;

  // Constant after Connect.
  std::vector<ShmSegment> segments_;  // as memories_; empty where these are a test's
  std::vector<NodeMemory> memories_;
  NodeMemory own_;
  int64_t staging_end_ = 0;         // in own_: board, staging, the rest
  std::optional<NodeFiles> files_;  // thread-safe

  // Guarded by mu_.
  Mutex mu_;
  std::optional<ArenaAllocator> staging_ ABSL_GUARDED_BY(mu_);
  std::optional<ArenaAllocator> rest_ ABSL_GUARDED_BY(mu_);
};

}  // namespace coordd
