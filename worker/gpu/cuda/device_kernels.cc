#include "worker/gpu/cuda/device_kernels.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace coordd {
namespace {

// The argument of the kernels, as kernels.cu has it.
struct Table {
  DeviceRow rows[DeviceKernels::kRowsPerLaunch];
};
static_assert(sizeof(Table) <= 4096 - 4 * sizeof(double), "a launch takes 4 KiB of arguments");
static_assert(std::has_unique_object_representations_v<Table>, "no byte that nobody writes");

// All that kernels.cu has.
constexpr const char* kNames[] = {
    "coordd_copy",
    "coordd_gate",
    "coordd_seal",
    "coordd_cast_bfloat16_float32",
    "coordd_cast_float16_float32",
    "coordd_cast_float32_bfloat16",
    "coordd_cast_float32_float16",
    "coordd_scale_bfloat16",
    "coordd_scale_bool",
    "coordd_scale_float16",
    "coordd_scale_float32",
    "coordd_scale_float64",
    "coordd_scale_float8_e4m3fn",
    "coordd_scale_float8_e5m2",
    "coordd_scale_int16",
    "coordd_scale_int32",
    "coordd_scale_int64",
    "coordd_scale_int8",
    "coordd_scale_uint16",
    "coordd_scale_uint32",
    "coordd_scale_uint64",
    "coordd_scale_uint8",
};

constexpr unsigned kThreads = 256;
// What one block moves before the next is worth starting, and how many are started for one row at
// most: more than any device runs at a time.
constexpr int64_t kBytesPerBlock = int64_t{kThreads} * 16 * 4;
constexpr int64_t kBlocksMax = 1024;
// One warp, whose loads of the word are one access.
constexpr unsigned kSealThreads = 32;

// As the kernels take it.
uint64_t LimitOf(absl::Duration limit) {
  return limit == absl::InfiniteDuration()
             ? 0
             : static_cast<uint64_t>(std::max<int64_t>(absl::ToInt64Nanoseconds(limit), 1));
}

}  // namespace

absl::StatusOr<DeviceKernels> DeviceKernels::Load(DeviceRuntime& runtime, int32_t device) {
  COORDD_ASSIGN_OR_RETURN(const DeviceRuntime::Functions* functions,
                          runtime.FunctionsOf(device, kDeviceKernelsPtx, kNames));
  return DeviceKernels(&runtime, device, functions);
}

absl::StatusOr<CudaFunction> DeviceKernels::Find(const std::string& name) const {
  const auto found = functions_->find(name);
  if (found == functions_->end()) return absl::InternalError(absl::StrCat("no kernel ", name));
  return found->second;
}

absl::Status DeviceKernels::LaunchRows(CudaFunction function, const double* factor,
                                       int64_t bytes_per_count, absl::Span<const DeviceRow> rows,
                                       CudaStream stream) const {
  COORDD_ASSIGN_OR_RETURN(DeviceScope scope, DeviceScope::Enter(*runtime_, device_));
  for (; !rows.empty(); rows.remove_prefix(std::min(rows.size(), kRowsPerLaunch))) {
    const absl::Span<const DeviceRow> part = rows.subspan(0, kRowsPerLaunch);
    Table table;
    std::copy(part.begin(), part.end(), table.rows);
    uint64_t longest = 0;
    for (const DeviceRow& row : part) longest = std::max(longest, row.count);
    if (longest == 0) continue;
    const int64_t blocks =
        (static_cast<int64_t>(longest) * bytes_per_count - 1) / kBytesPerBlock + 1;
    double by = factor != nullptr ? *factor : 1.0;
    void* arguments[] = {&table, &by};
    COORDD_RETURN_IF_ERROR(runtime_->Check(
        runtime_->cuda().LaunchKernel(function, static_cast<unsigned>(std::min(blocks, kBlocksMax)),
                                      static_cast<unsigned>(part.size()), 1, kThreads, 1, 1, 0,
                                      stream, arguments, nullptr),
        "cuLaunchKernel", device_));
  }
  return absl::OkStatus();
}

absl::Status DeviceKernels::Copy(absl::Span<const DeviceRow> rows, CudaStream stream) const {
  COORDD_ASSIGN_OR_RETURN(const CudaFunction function, Find("coordd_copy"));
  return LaunchRows(function, nullptr, 1, rows, stream);
}

absl::Status DeviceKernels::Scale(DataType from, DataType to, double factor,
                                  absl::Span<const DeviceRow> rows, CudaStream stream) const {
  auto is_half = [](DataType dtype) {
    return dtype == DataType::kFloat16 || dtype == DataType::kBfloat16;
  };
  const bool cast = from != to;
  if (cast && !(from == DataType::kFloat32 && is_half(to)) &&
      !(is_half(from) && to == DataType::kFloat32)) {
    return absl::InvalidArgumentError(absl::StrCat("a cast from ", Name(from), " to ", Name(to),
                                                   ", expected float32 on one side and float16 or "
                                                   "bfloat16 on the other"));
  }
  const std::string name = cast ? absl::StrCat("coordd_cast_", Name(from), "_", Name(to))
                                : absl::StrCat("coordd_scale_", Name(to));
  COORDD_ASSIGN_OR_RETURN(const CudaFunction function, Find(name));
  return LaunchRows(function, &factor, std::max(SizeOf(from), SizeOf(to)), rows, stream);
}

absl::Status DeviceKernels::Gate(const std::atomic<uint32_t>* word, CudaStream stream,
                                 absl::Duration limit) const {
  COORDD_ASSIGN_OR_RETURN(const CudaFunction function, Find("coordd_gate"));
  COORDD_ASSIGN_OR_RETURN(DeviceScope scope, DeviceScope::Enter(*runtime_, device_));
  uint64_t limit_nanoseconds = LimitOf(limit);
  void* arguments[] = {&word, &limit_nanoseconds};
  return runtime_->Check(
      runtime_->cuda().LaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr),
      "cuLaunchKernel of the gate", device_);
}

absl::Status DeviceKernels::Seal(const std::atomic<uint32_t>* word,
                                 absl::Span<const DeviceRow> outputs, CudaStream stream,
                                 absl::Duration limit) const {
  COORDD_ASSIGN_OR_RETURN(const CudaFunction function, Find("coordd_seal"));
  COORDD_ASSIGN_OR_RETURN(DeviceScope scope, DeviceScope::Enter(*runtime_, device_));
  uint64_t limit_nanoseconds = LimitOf(limit);
  for (; !outputs.empty(); outputs.remove_prefix(std::min(outputs.size(), kRowsPerLaunch))) {
    const absl::Span<const DeviceRow> part = outputs.subspan(0, kRowsPerLaunch);
    Table table;
    std::copy(part.begin(), part.end(), table.rows);
    auto rows = static_cast<unsigned>(part.size());
    void* arguments[] = {&table, &word, &limit_nanoseconds, &rows};
    COORDD_RETURN_IF_ERROR(
        runtime_->Check(runtime_->cuda().LaunchKernel(function, 1, 1, 1, kSealThreads, 1, 1, 0,
                                                      stream, arguments, nullptr),
                        "cuLaunchKernel of the seal", device_));
  }
  return absl::OkStatus();
}

}  // namespace coordd
