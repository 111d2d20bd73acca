// Moves and combines what an operation of the plan (node_plan.h) names, where the members' buffers
// are.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "worker/algorithms/slice_exchange.h"
#include "worker/interfaces/collective_backend.h"
#include "worker/node/node_lane.h"
#include "worker/node/node_plan.h"

namespace coordd {

// What a member posts with the first step of a collective that does not travel in the post. Fixed
// layout.
struct NodePost {
  enum Flags : uint32_t {
    kShareable = 1,     // all that others have to reach is mapped
    kInputMapped = 2,   //
    kOutputMapped = 4,  // and there is one
    kCarried = 8,       // the input is in the post, too
  };
  int64_t input = 0;  // where they are in the member's NodeMemory, if they are mapped
  int64_t output = 0;
  int64_t staging = 0;
  int64_t largest_block_bytes = 0;
  uint32_t flags = 0;
  uint32_t padding = 0;
  int64_t sequence = 0;  // for diagnosis: members that are at different ones

  bool Has(Flags flag) const { return (flags & flag) != 0; }
};
static_assert(sizeof(NodePost) == 48);

// Whether the buffers are where the others have them mapped.
bool IsInputMapped(const CollectiveArgs& args, const NodeLane& lane);
bool IsOutputMapped(const CollectiveArgs& args, const NodeLane& lane);

// One thread uses it, that of the lane's owner. What the constructor and Begin are given outlives
// it.
class NodeMover {
 public:
  // The arguments are those of NodeCollectiveRun. `scale` multiplies what is reduced.
  NodeMover(const CollectiveArgs& args, const NodeLane& lane, absl::Span<std::byte> staging,
            SliceExchange* exchange, double scale);

  // `posts`: of all members, of a broadcast that is fetched from the root at least the root's.
  // `streams`: results pass by the caches.
  void Begin(const NodeCollective& collective, const NodeMode& mode,
             absl::Span<const NodePost> posts, bool streams);

  // Shows `piece` of private memory to the others; returns how many bytes that took.
  int64_t Stage(const NodeCollective& collective, const NodeMode& mode, int64_t piece);
  // The range that is exchanged of an allreduce, a broadcast or a reduce; `operation` is all of it.
  absl::Span<std::byte> SliceOf(const NodeOperation& operation) const;
  // Performs at most `size_bytes` of an operation of `step`, from `begin` on; returns how many it
  // has done.
  int64_t Perform(const NodeOperation& operation, int64_t step, int64_t begin, int64_t size_bytes);

 private:
  struct Where {
    const NodeOperation& operation;
    int64_t step = 0;
    int64_t begin = 0;  // in the operation
  };

  int64_t OneRun(const Where& where, int64_t size_bytes, bool& is_padding) const;
  std::byte* OutputOf(int32_t member, int64_t at) const;
  const std::byte* OwnInput(int64_t at) const;
  std::byte* OwnOutput(int64_t at) const;
  std::byte* HomeOf(const NodeOperation& operation, int64_t begin) const;
  const std::byte* SourceOf(const Where& where, int32_t member) const;
  void FindSources(const Where& where);
  void FindTargets(const Where& where);
  bool ReplacesOperand() const;
  bool CombinesTwice(const NodeOperation& operation) const;
  // Makes one part of what is reduced, and scales it as long as it is in the cache.
  void Make(std::byte* result, absl::Span<const std::byte* const> sources, int64_t size_bytes);
  void Combine(int64_t begin, int64_t size_bytes);
  void CopyOut(const std::byte* from, int64_t begin, int64_t size_bytes);
  // The place in a member's staging memory of its results of a step, behind what it shows.
  int64_t MadeAt(int64_t step) const { return (2 + step % 2) * mode_->buffer_bytes; }

  // Constant after construction.
  const CollectiveArgs& args_;
  const NodeLane& lane_;
  const absl::Span<std::byte> staging_;
  const absl::Span<const std::byte> input_;
  const double scale_;
  SliceExchange* const exchange_;

  // Touched by the owner's thread. After Begin.
  const NodeCollective* collective_ = nullptr;
  const NodeMode* mode_ = nullptr;
  absl::Span<const NodePost> posts_;
  bool streams_ = false;
  // The sources and targets of the operation that is under way.
  absl::InlinedVector<const std::byte*, 8> sources_;
  absl::InlinedVector<std::byte*, 4> targets_;
  bool scales_ = false, passes_by_ = false;
};

}  // namespace coordd
