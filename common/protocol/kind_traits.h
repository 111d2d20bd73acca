// What a kind of collective is. A new one is a row of kKindTraits, and nothing else in this file.
#pragma once

#include <cstddef>
#include <iterator>

#include "common/protocol/types.h"

namespace coordd {

struct KindTraits {
  CollectiveKind kind;
  bool reduces = false;
  bool has_root = false;
  bool is_pairwise = false;
  bool needs_every_rank = false;
  bool has_payload = true;
  bool rows_may_differ = false;  // the extents of the first dimension, by rank
  bool has_rows = false;         // it is divided by the first dimension, or put together by it
  bool input_by_rank = false;    // each rank gives rows to each
  bool can_fuse = false;
};

// By number, from 1 on.
inline constexpr KindTraits kKindTraits[] = {
    {.kind = CollectiveKind::kAllreduce,
     .reduces = true,
     .needs_every_rank = true,
     .can_fuse = true},
    {.kind = CollectiveKind::kAllgather,
     .needs_every_rank = true,
     .rows_may_differ = true,
     .has_rows = true,
     .can_fuse = true},
    {.kind = CollectiveKind::kBroadcast, .has_root = true, .can_fuse = true},
    {.kind = CollectiveKind::kReducescatter,
     .reduces = true,
     .needs_every_rank = true,
     .has_rows = true,
     .input_by_rank = true,
     .can_fuse = true},
    {.kind = CollectiveKind::kAlltoall,
     .needs_every_rank = true,
     .rows_may_differ = true,
     .has_rows = true,
     .input_by_rank = true},
    {.kind = CollectiveKind::kBarrier, .needs_every_rank = true, .has_payload = false},
    {.kind = CollectiveKind::kJoin, .needs_every_rank = true, .has_payload = false},
    {.kind = CollectiveKind::kReduce, .reduces = true, .has_root = true, .can_fuse = true},
    {.kind = CollectiveKind::kGather, .has_root = true, .rows_may_differ = true, .has_rows = true},
    {.kind = CollectiveKind::kSend, .is_pairwise = true},
    {.kind = CollectiveKind::kReceive, .is_pairwise = true},
};

constexpr bool KindTraitsAreInOrder() {
  size_t number = 0;
  for (const KindTraits& traits : kKindTraits)
    if (static_cast<size_t>(traits.kind) != ++number) return false;
  return number == static_cast<size_t>(kLastCollectiveKind);
}
static_assert(KindTraitsAreInOrder());

// What comes from the wire may be no kind: then nothing is true of it but that it has a payload.
inline constexpr KindTraits kNoKind = {.kind = CollectiveKind{0}};

// Constant where the kind is: these stand on the way of every call.
constexpr const KindTraits& TraitsOf(CollectiveKind kind) {
  const size_t row = static_cast<size_t>(kind) - 1;
  return row < std::size(kKindTraits) ? kKindTraits[row] : kNoKind;
}

// Whether it is an allreduce, reducescatter or reduce.
constexpr bool Reduces(CollectiveKind kind) { return TraitsOf(kind).reduces; }
// Whether it is a broadcast, reduce or gather.
constexpr bool HasRoot(CollectiveKind kind) { return TraitsOf(kind).has_root; }
// Whether it is a send or a receive.
constexpr bool IsPairwise(CollectiveKind kind) { return TraitsOf(kind).is_pairwise; }
// Whether no rank ends the collective before every rank has begun it. A root or a sender needs
// nobody.
constexpr bool NeedsEveryRank(CollectiveKind kind) { return TraitsOf(kind).needs_every_rank; }
// Whether it moves bytes: all but barrier and join.
constexpr bool HasPayload(CollectiveKind kind) { return TraitsOf(kind).has_payload; }
// Whether the first dimension may differ by rank: allgather, gather and alltoall.
constexpr bool FirstDimensionMayDiffer(CollectiveKind kind) {
  return TraitsOf(kind).rows_may_differ;
}
// Whether the result has another first dimension than the input: these three and reducescatter.
constexpr bool HasRows(CollectiveKind kind) { return TraitsOf(kind).has_rows; }
// Whether the input has rows for each rank: reducescatter and alltoall.
constexpr bool InputIsByRank(CollectiveKind kind) { return TraitsOf(kind).input_by_rank; }
// Whether the program may say how many rows each rank gets: alltoall.
constexpr bool HasSplits(CollectiveKind kind) {
  return InputIsByRank(kind) && FirstDimensionMayDiffer(kind);
}
// Whether several tensors of this kind may travel as one batch; the others are batches of one.
constexpr bool CanFuse(CollectiveKind kind) { return TraitsOf(kind).can_fuse; }

}  // namespace coordd
