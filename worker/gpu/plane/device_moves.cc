#include "worker/gpu/plane/device_moves.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "common/base/status_macros.h"

namespace coordd {

absl::Status EnqueueMoves(absl::Span<const TensorMove> moves, DeviceRuntime& device, int32_t index,
                          DeviceKernels& kernels, CudaStream stream, IdentityMemory& identities) {
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
        COORDD_ASSIGN_OR_RETURN(const std::byte* const values,
                                identities.Of(move.dtype, move.op, device, index));
        for (int64_t done = 0; done < move.bytes; done += IdentityMemory::kBytes) {
          COORDD_RETURN_IF_ERROR(CopyAsync(device, index, move.to + done, values,
                                           std::min(move.bytes - done, IdentityMemory::kBytes),
                                           stream));
        }
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
