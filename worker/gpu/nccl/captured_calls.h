// Collectives that a program captures into CUDA graphs: what they are, and whether all ranks have
// captured the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/protocol/types.h"

namespace coordd {

// One tensor of a call; both buffers are memory of the communicator's device.
struct CapturedTensor {
  const std::byte* input = nullptr;
  std::byte* output = nullptr;  // may be the input: in place
  int64_t input_bytes = 0, output_bytes = 0;
  DataType dtype = DataType::kUint8;
  double prescale = 1.0;  // of an allreduce
  double scale = 1.0;     // of the result: an average's divisor, a postscale factor
};

// allreduce, allgather and reducescatter (of equal blocks), or broadcast.
struct CapturedCall {
  CollectiveKind kind = CollectiveKind::kAllreduce;
  ReduceOp op = ReduceOp::kNone;  // what NCCL does: an average is a sum
  int32_t root = 0;               // of a broadcast, in the set
  std::vector<CapturedTensor> tensors;
};

// "allreduce sum of 2 tensors: float32 1024, float16 64": what has to be equal on all ranks.
std::string DescribeCall(const CapturedCall& call);

// What a rank has captured with one communicator, in its order. Not thread-safe.
class CapturedSequence {
 public:
  // How much text is kept. Of more only the digest is, so a difference is found, but has no name.
  static constexpr size_t kTextBytesMax = 48 << 10;

  void Add(const std::string& call);
  // For the others: at most 64 KiB.
  std::string Encode() const;

 private:
  int64_t count_ = 0;
  uint64_t digest_ = 14695981039346656037u;  // FNV-1a of all texts
  std::string texts_;                        // a line for each
  bool complete_ = true;
};

// `encoded`: of the ranks of a set, in its order; `ranks`: their numbers in the job. Empty: all
// have captured the same; else a sentence that names the first rank that differs from the set's
// first one, the call, and what both have captured there.
std::string FirstDifference(absl::Span<const std::string> encoded, absl::Span<const int32_t> ranks);

}  // namespace coordd
