// One collective's result against the inputs of all ranks, which further collectives bring. PURE.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/protocol/types.h"
#include "worker/interfaces/collective_backend.h"

namespace coordd {

// After the collective each rank runs what Next() returns, one after the other, on the same lane;
// all ranks return the same ones. First the sizes of all inputs; then the inputs themselves, in
// pieces, so that the memory of a check is that of the own input and of one piece per rank: by
// allgathers, or, of an allgather and a gather, by a broadcast from each rank. Reductions are
// compared with result_reference.h, everything else to the bit.
class ResultCheck {
 public:
  // The size of a piece: a multiple of every element size, equal on all ranks.
  static constexpr int64_t kPieceBytes = int64_t{256} << 10;
  // The size of the text of a dump: both vectors from the first piece with a mismatch on.
  static constexpr size_t kMaxDumpBytes = size_t{64} << 20;

  // Whether there is a result to compare.
  static bool Covers(CollectiveKind kind) { return kind != CollectiveKind::kBarrier; }

  // Before the collective, which may overwrite its input: copies it. `self` and `ranks` are the
  // group's. `args` stays valid as long as this. REQUIRES: Covers(args.kind); ValidateArgs.
  ResultCheck(const CollectiveArgs& args, int32_t self, int32_t ranks, double tolerance,
              int64_t piece_bytes = kPieceBytes);

  // The next collective of the check; the one before has ended well. nullopt: all is compared.
  std::optional<CollectiveArgs> Next();

  // The first mismatch: "allreduce (float32 sum) of tensor a, element 3: got 1, expected 2"; empty
  // when there is none so far.
  const std::string& mismatch() const { return mismatch_; }
  // Index, what was got and what was expected, of as many elements as kMaxDumpBytes hold; a star
  // where the bytes differ.
  const std::string& dump() const { return dump_; }

 private:
  enum class Stage { kBegin, kSizes, kPieces };

  // Whether a piece of a rank's input travels by a broadcast.
  bool by_broadcast() const {
    return args_.kind == CollectiveKind::kAllgather || args_.kind == CollectiveKind::kGather;
  }
  int64_t input_bytes(size_t rank) const { return sizes_[rank * words_]; }
  int64_t PieceBytesOf(size_t rank) const;
  const std::byte* PieceOf(size_t rank) const { return gathered_.data() + starts_[rank]; }
  CollectiveArgs Sizes();
  bool BeginPiece();
  CollectiveArgs PieceArgs();
  void ComparePiece();
  void CompareReduced();
  void CompareMoved();
  void CompareAlltoall();
  void CompareBytes(int64_t result_offset, const std::byte* expected, int64_t bytes);
  void Report(int64_t result_offset, int64_t wrong);
  void Dump(int64_t result_offset, const std::byte* expected, int64_t count);

  // Constant after construction.
  const CollectiveArgs& args_;
  const size_t self_, ranks_;
  const double tolerance_;
  const int64_t piece_bytes_;
  const size_t words_;  // that each rank tells about its input

  std::vector<std::byte> own_;  // the input, as it was
  Stage stage_ = Stage::kBegin;
  std::vector<int64_t> told_, sizes_;  // by this rank; by all
  int64_t first_byte_ = 0;             // of the piece, in each rank's input
  size_t source_ = 0;                  // of the next broadcast
  std::vector<int64_t> starts_;        // by rank: where its piece is in gathered_
  std::vector<std::byte> gathered_, expected_;
  std::string mismatch_, dump_;
};

}  // namespace coordd
