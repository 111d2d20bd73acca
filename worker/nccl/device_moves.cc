#include "worker/nccl/device_moves.h"

#include <map>
#include <tuple>
#include <utility>

#include "common/status_macros.h"
#include "worker/reduce_kernels.h"

namespace coordd {

absl::Status EnqueueMoves(absl::Span<const TensorMove> moves, DeviceRuntime& device, int32_t index,
                          DeviceKernels& kernels, CudaStream stream,
                          std::vector<DeviceMemory>& kept) {
  std::vector<DeviceRow> copies;
  std::map<std::pair<DataType, double>, std::vector<DeviceRow>> scaled;
  for (const TensorMove& move : moves) {
    const auto count = static_cast<uint64_t>(move.bytes / SizeOf(move.dtype));
    switch (move.kind) {
      case TensorMove::Kind::kCopy:
        copies.push_back({move.from, move.to, static_cast<uint64_t>(move.bytes)});
        break;
      case TensorMove::Kind::kScale:
        scaled[{move.dtype, move.factor}].push_back({move.from, move.to, count});
        break;
      case TensorMove::Kind::kAverage:
        return absl::InvalidArgumentError("an average of integers on a device, expected it staged");
      case TensorMove::Kind::kFill: {
        COORDD_ASSIGN_OR_RETURN(DeviceMemory value,
                                DeviceMemory::AllocatePinned(device, index, move.bytes));
        FillIdentity(move.dtype, move.op, value.data(), static_cast<int64_t>(count));
        COORDD_RETURN_IF_ERROR(CopyAsync(device, index, move.to, value.data(), move.bytes, stream));
        kept.push_back(std::move(value));
        break;
      }
    }
  }
  if (!copies.empty()) COORDD_RETURN_IF_ERROR(kernels.Copy(copies, stream));
  for (const auto& [how, rows] : scaled)
    COORDD_RETURN_IF_ERROR(kernels.Scale(how.first, how.first, how.second, rows, stream));
  return absl::OkStatus();
}

}  // namespace coordd
