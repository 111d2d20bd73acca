// Collectives among ranks that have each other's buffers mapped, as data: what a member reads and
// writes in each step. PURE.
//
// A collective is a sequence of steps. In a step a member does its operations (OperationsOf), then
// says so and waits until all have said it: what was written in a step may be read in the next one.
// (Of a staged broadcast, where data goes one way only, it waits for less: see WaitBefore.)
// Rules, which tests/worker/node/node_plan_test.cc checks for all members at once:
//   - In a step nobody writes what another one reads or writes, unless both are one operation.
//   - An input is read in the steps [0, pieces) only, a part in the step of its piece.
//   - Together the steps write every byte of every output once.
//   - A reduction combines the members' inputs in the order of their ranks, whoever does it, so
//     that results are the same bits everywhere and whatever the pieces are.
//
// Shared: every member's buffers are mapped by all. One piece, in which members write their slices
// of the result into everybody's output: n bytes read and n written by each, for p members and n
// bytes (1.5 passes over memory for two of them, where a message layer needs 3 to 4).
// Staged: some member's memory is private. Inputs are shown to the others a piece at a time
// (StagedRanges), and results are fetched one step later from the member that has made them, while
// the next piece is combined. Two buffers take turns: what is shown in step s is read in s only,
// what is made in s is fetched in s + 1 only. Of a broadcast pieces are smaller and more of them
// are shown at a time, so that the root copies in while the others copy out, at their own pace.
// Exchanged: among several nodes of as many members, or of an allreduce, a broadcast or a reduce as
// many carriers. Of an allreduce or a broadcast each combines its slice of a piece as above, or
// copies it from the root, has it combined with those of the members of its number on the other
// nodes, or sent to them (slice_exchange.h), and gives the result to its node three steps later,
// while the slices of kExchangeAhead pieces are under way. Pieces are the same on all nodes, whose
// members' memory may be shared or staged. Shared, members touch only their own slice of anybody's
// buffer, and none waits for another before the end. Cost, for m members on each of k nodes and n
// bytes: n / m bytes of each member cross the network for each edge of the schedule between the
// nodes, as many connections at once as a node has members; a broadcast's last piece is there when
// the first one's way of ceil(log2 k) edges and n bytes are over (multi-leader broadcast, as in
// Kandalla et al., "Designing Multi-Leader-Based Allgather Algorithms for Multi-Core Clusters", CAC
// 2009, for another operation).
// Of a reduce the slices come together at the members of the root's node, in the root's output if
// that is mapped, else where the root fetches them. On the other nodes they never leave memory of
// the exchange's.
// Of an allgather and a reducescatter a member's column is what the members of its number on all
// nodes have, or get: an allgather exchanges a piece of each of the column's blocks in a ring and
// gives them all to its node; a reducescatter combines a piece of each of them among the members of
// the node, and sends each to the node whose it is, pairwise. Cost, for blocks of b bytes: (k - 1)
// b of each member cross the network, which is as little as can be where a flat schedule sends up
// to m times as much.
#pragma once

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "common/protocol/types.h"
#include "worker/algorithms/collective_schedule.h"

namespace coordd {

// One collective as one of its members sees it. Members are counted from 0.
struct NodeCollective {
  static constexpr int32_t kElsewhere = -1;
  CollectiveKind kind = CollectiveKind::kBarrier;
  int32_t members = 1;
  int32_t self = 0;
  int32_t root = 0;  // kElsewhere: on another node
  // The size of the input (allreduce, reduce) or of the output (broadcast).
  int64_t size_bytes = 0;
  // Blocks by receiver (reducescatter, alltoall); else empty.
  absl::Span<const int64_t> input_blocks;
  // Blocks by sender (allgather, alltoall, gather on its root); else empty.
  absl::Span<const int64_t> output_blocks;
  // Where in each member's input this one's block begins (alltoall), which their posts say.
  absl::Span<const int64_t> block_offsets;
  // How many nodes exchange, and which one this is. Blocks are then those of all members of the
  // first node, of the second one, and so on.
  int32_t nodes = 1;
  int32_t node = 0;
  // How many members, the first ones, combine and exchange slices in an exchanged allreduce,
  // broadcast or reduce: as many as there are on the node that has the fewest. The others only show
  // their inputs and get the results. 0: all.
  int32_t carriers = 0;
};

// How a collective is done; equal on all members.
struct NodeMode {
  bool shared = true;        // else staged
  int64_t piece_bytes = 0;   // staged, exchanged: of one piece of a block
  int64_t pieces = 1;        // staged, exchanged: of the largest block of any member
  int64_t shown = 2;         // staged: pieces that a member shows at a time, each in its buffer
  int64_t buffer_bytes = 0;  // staged: of each of the kStagingBuffers
  bool exchanged = false;
};

// Pieces whose slices are between nodes at one time.
inline constexpr int64_t kExchangeAhead = 4;

// Buffers in which private memory is shown to the others: inputs, then results, two each; of what
// has no results all of them are the inputs'.
inline constexpr int64_t kStagingBuffers = 4;
struct NodeStaging {
  int64_t buffer_bytes = 0;     // of each
  int64_t broadcast_bytes = 0;  // the smallest piece of a broadcast
  int64_t exchange_bytes = 0;   // the largest piece of what is exchanged, whose buffers fit it
};

// Where an operation writes.
enum class NodeTarget : uint8_t {
  kOwnOutput,
  kOwnResult,     // a slice that others fetch; and the own output, if this member has one
  kRootOutput,    // the buffer of the root
  kEveryOutput,   // of all members
  kOthersOutput,  // of all but the root
  kPartial,       // of the piece, in memory of the exchange's
  kSlice,         // the same, from its beginning: all of this member's slice
  kNowhere,       // it stays where it is
};

// What an operation has to do with the exchange between nodes.
enum class NodeExchange : uint8_t {
  kNone,
  kBegins,  // what has been made of `piece` now goes to the other nodes, or comes from one
  kEnds,    // behind the exchange of `piece`: copies what that has left in the own output
};

struct NodeOperation {
  // Combines the inputs of all members; else copies from member `from`: its input, or the slice
  // that it has made in the step before.
  bool combines = false;
  bool from_result = false;
  int32_t from = 0;
  int64_t size_bytes = 0;
  int64_t from_bytes = 0;    // where in the source's buffer (with `combines`: of each)
  int64_t staged_bytes = 0;  // where in what a member shows of it in this step
  NodeTarget target = NodeTarget::kOwnOutput;
  int64_t to_bytes = 0;  // where in the output
  NodeExchange exchange = NodeExchange::kNone;
  int64_t piece = 0;  // of the exchange
};
using NodeOperations = absl::InlinedVector<NodeOperation, 4>;

// Slices, of one piece, are cut at cache lines of the buffers.
inline constexpr int64_t kSliceBytes = 64;
// The part of [begin, end) that `member` works on.
ByteRange NodeSliceOf(int64_t begin, int64_t end, int32_t member, int32_t members);

// Whether members fetch slices from each other when memory is private: allreduce, reduce.
bool HasNodeResults(CollectiveKind kind);
// The size of the largest block that this member shows to another one.
int64_t LargestBlockBytes(const NodeCollective& collective);
// How a collective is staged, but for the number of pieces, which depends on the others' blocks.
// Pieces are whole cache lines. REQUIRES: buffers of a cache line for each member.
NodeMode StagedMode(const NodeCollective& collective, const NodeStaging& staging);
// An exchanged allreduce, broadcast, reduce, allgather or reducescatter, but for `shared`, which
// nodes need not agree on.
NodeMode ExchangedMode(const NodeCollective& collective, const NodeStaging& staging);
// The size of a piece of an exchanged allreduce, broadcast or reduce, however many carriers there
// are.
int64_t ExchangedPieceBytes(int64_t size_bytes, const NodeStaging& staging);
// Where the own slice of what is exchanged is before, and its result behind the exchange:
// kOwnOutput, kRootOutput or kSlice.
NodeTarget SliceHome(const NodeCollective& collective, const NodeMode& mode);
// The size of the largest slice of a piece that any member has, or of the largest part of a block.
int64_t LargestSliceBytes(const NodeCollective& collective, const NodeMode& mode);
// The parts of this member's column that are in `piece`, by node, in an exchanged allgather or
// reducescatter: in the output of the allgather, or in what the exchange has for partial results.
using NodeParts = absl::InlinedVector<ByteRange, 4>;
NodeParts ExchangedParts(const NodeCollective& collective, const NodeMode& mode, int64_t piece);
// Where what a member shows of `piece` begins in its staging memory.
int64_t ShownAt(const NodeCollective& collective, const NodeMode& mode, int64_t piece);

// Steps in which members have something to do; one more ends the collective, after which nobody
// reads anybody's memory.
int64_t NodeSteps(const NodeCollective& collective, const NodeMode& mode);

// What a member waits for before it does `step`, or ends with it: that `member` has reached
// `reached`. When it has done it, it may show the piece of the next one.
struct NodeWait {
  static constexpr int32_t kAll = -1;
  int32_t member = kAll;
  int64_t reached = 0;  // 0: all have, as they know each other's posts
};
NodeWait WaitBefore(const NodeCollective& collective, const NodeMode& mode, int64_t step);

// What this member does in `step`, after that.
NodeOperations OperationsOf(const NodeCollective& collective, const NodeMode& mode, int64_t step);

// What this member, if its memory is private, copies from its input to a staging buffer before it
// says that it has reached `step`.
struct StagedRange {
  int64_t from_bytes = 0;  // in the input
  int64_t to_bytes = 0;    // in the buffer
  int64_t size_bytes = 0;
};
using StagedRanges = absl::InlinedVector<StagedRange, 8>;
StagedRanges StagedRangesOf(const NodeCollective& collective, const NodeMode& mode, int64_t step);

}  // namespace coordd
