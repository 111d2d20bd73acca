// Moves and combines slices between nodes, a few of them at a time: what a collective on mapped
// memory does beyond its node, and an allreduce, or by dimensions an allgather or a reducescatter,
// among nodes of one rank.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/protocol/types.h"
#include "worker/algorithms/collective_run.h"
#include "worker/algorithms/dimension_schedule.h"
#include "worker/interfaces/collective_backend.h"
#include "worker/interfaces/lane_run.h"
#include "worker/interfaces/transport.h"

namespace coordd {

// The collectives that there are between nodes.
inline bool HasExchange(CollectiveKind kind) {
  return kind == CollectiveKind::kAllreduce || kind == CollectiveKind::kBroadcast ||
         kind == CollectiveKind::kReduce || kind == CollectiveKind::kAllgather ||
         kind == CollectiveKind::kReducescatter;
}

// Where a rank's slices go.
struct AcrossNodes {
  // The rank, by node, of the transport that has the same number among its node's members as this
  // one among its own. The span outlives what is done with it.
  RunMembers ranks;
  int32_t self = 0;         // index of the own node
  int32_t root = 0;         // of a broadcast or a reduce: of the root's node
  int32_t root_member = 0;  // and its number among that node's members
  // How many members of each node, the first ones, have slices; 0: all. Where a node has more, the
  // others exchange nothing.
  int32_t carriers = 0;
  bool carries = true;  // whether this one is among them; else `ranks` only tells how many nodes
  // Of the nodes, for allreduces, allgathers and reducescatters; outlives what is done with it.
  // nullptr or empty: there is none.
  const GridOfRanks* grid = nullptr;
  // Whether the nodes have one rank each: a reducescatter has nothing to combine inside them.
  bool apart = false;
};

// An allreduce, broadcast, reduce, allgather or reducescatter of one piece after the other among
// these ranks, each a CollectiveRun under a tag of its own, so that pieces do not wait for each
// other. A part of another run of the lane, which begins the pieces and does not destroy it before
// idle(), or a run of its own (BeginAll).
class SliceExchange final : public LaneRun {
 public:
  // Pieces under way, which have different tags.
  static constexpr int64_t kInFlight = Tag::kParts;

  // `args`: of which kind, dtype, op, lane and sequence count; they and `transport` outlive it.
  // `slices`, or parts of blocks, of at most `slice_bytes_max`. REQUIRES: more than one node.
  SliceExchange(const CollectiveArgs& args, AcrossNodes across, int64_t slice_bytes_max,
                RunOptions options, Transport& transport);
  SliceExchange(const SliceExchange&) = delete;
  SliceExchange& operator=(const SliceExchange&) = delete;

  int32_t nodes() const { return static_cast<int32_t>(across_.ranks.size()); }
  int32_t node() const { return across_.self; }
  // Whether the root is on this node.
  bool has_root() const { return across_.self == across_.root; }
  int32_t root_member() const { return across_.root_member; }
  int32_t carriers() const { return across_.carriers; }
  // The size of `scratch` that the exchange needs.
  int64_t scratch_bytes() const { return kInFlight * (partial_each_ + scratch_each_); }
  // Gives the exchange its scratch: 64-byte aligned, valid until the exchange is destroyed. To be
  // called before the first Begin.
  void Use(absl::Span<std::byte> scratch) { scratch_ = scratch; }

  // The slice of piece `piece`, and where its result goes, which may be the same memory, and of a
  // broadcast is, and of a reduce does not count but on the root's node; neither is to be looked at
  // until Ended. Pieces begin in their order, on all nodes alike; those of no bytes may be left
  // out. REQUIRES: piece - kInFlight has ended. Of an allgather `parts` say, by node, where in the
  // output each node's part belongs, and `input` is the own one, which is copied there; of a
  // reducescatter, where in the input the part for each node is, and `output` is for the own one.
  void Begin(int64_t piece, absl::Span<const std::byte> input, absl::Span<std::byte> output,
             absl::Span<const ByteRange> parts = {});
  // Memory of the exchange's. For a reducescatter, unless nodes are apart: its input,
  // slice_bytes_max for each node, until the next piece with the same tag begins. For a reduce: one
  // slice.
  absl::Span<std::byte> Partial(int64_t piece) const;
  // REQUIRES: it has begun, or was left out.
  bool Ended(int64_t piece) const;

  // Exchanges, in the place of pieces, all of the input and output of the arguments. They, or each
  // block of an allgather or a reducescatter, which is among nodes of one rank each then, are cut
  // into slices of `slice_bytes`, at most slice_bytes_max and whole elements.
  void BeginAll(int64_t slice_bytes);
  bool finished() const override { return idle() && (!status_.ok() || next_ == pieces_of_all_); }
  // The size of the slices of all that these have, each of which goes from input to output as soon
  // as it can.
  static int64_t SliceBytesFor(const CollectiveArgs& args);

  bool Advance() override;
  void Fail(absl::Status status) override;
  bool idle() const;  // nothing is in flight
  const absl::Status& status() const override { return status_; }

 private:
  struct Piece {
    int64_t number = -1;
    std::optional<CollectiveRun> run;
  };
  bool BeginNext();
  void BeginNextOfBlocks();
  size_t IndexOf(int64_t piece) const { return static_cast<size_t>(piece % kInFlight); }

  // Constant after construction.
  const CollectiveArgs& args_;
  const AcrossNodes across_;
  const RunOptions options_;
  Transport& transport_;
  const int64_t partial_each_;
  const int64_t scratch_each_;

  // Touched by the owner's thread.
  absl::Span<std::byte> scratch_;
  std::array<Piece, kInFlight> pieces_;
  int64_t slice_bytes_ = 0, pieces_of_all_ = 0, next_ = 0;  // after BeginAll
  std::vector<ByteRange> blocks_;                           // likewise, where there are some
  absl::Status status_;
};

}  // namespace coordd
