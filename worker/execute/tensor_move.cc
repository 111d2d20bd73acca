#include "worker/execute/tensor_move.h"

#include <algorithm>
#include <new>

#include "worker/base/aligned_buffer.h"
#include "worker/base/copy_bytes.h"
#include "worker/numeric/integer_average.h"
#include "worker/numeric/reduce_kernels.h"

namespace coordd {

void RunOnHost(const TensorMove& move) {
  const int64_t count = move.bytes / SizeOf(move.dtype);
  switch (move.kind) {
    case TensorMove::Kind::kCopy:
      CopyBytes(move.to, move.from, move.bytes);
      break;
    case TensorMove::Kind::kScale:
      CopyScaled(move.dtype, move.factor, move.to, move.from, count);
      break;
    case TensorMove::Kind::kAverage:
      CopyAveraged(move.dtype, move.factor, move.divisor, move.to, move.from, count);
      break;
    case TensorMove::Kind::kFill:
      FillIdentity(move.dtype, move.op, move.to, count);
      break;
  }
}

std::shared_ptr<std::byte[]> AllocateOnHost(int64_t bytes) {
  constexpr std::align_val_t kAlignment{AlignedBuffer::kAlignmentBytes};
  auto* memory = static_cast<std::byte*>(
      ::operator new(static_cast<size_t>(std::max<int64_t>(bytes, 1)), kAlignment, std::nothrow));
  return std::shared_ptr<std::byte[]>(
      memory, [](std::byte* owned) { ::operator delete (owned, std::align_val_t{64}); });
}

}  // namespace coordd
