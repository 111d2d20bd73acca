#include "worker/device/device_kernels.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace coordd {
namespace {

// The argument of the kernels, as kernels.cu has it.
struct Table {
  DeviceRow rows[DeviceKernels::kRowsPerLaunch];
};
static_assert(sizeof(Table) <= 4096 - sizeof(double), "a launch takes 4 KiB of arguments");

constexpr unsigned kThreads = 256;
// What one block moves before the next is worth starting, and how many are started for one row at
// most: more than any device runs at a time.
constexpr int64_t kBytesPerBlock = int64_t{kThreads} * 16 * 4;
constexpr int64_t kBlocksMax = 1024;

}  // namespace

absl::StatusOr<DeviceKernels> DeviceKernels::Load(DeviceRuntime& runtime, int32_t device) {
  COORDD_ASSIGN_OR_RETURN(DeviceScope scope, DeviceScope::Enter(runtime, device));
  DeviceKernels kernels(&runtime, device);
  COORDD_RETURN_IF_ERROR(
      runtime.Check(runtime.cuda().ModuleLoadData(&kernels.module_, kDeviceKernelsPtx),
                    "cuModuleLoadData of coordd's kernels", device));
  return kernels;
}

DeviceKernels::~DeviceKernels() {
  if (module_ == nullptr) return;
  const auto scope = DeviceScope::Enter(*runtime_, device_);
  runtime_->cuda().ModuleUnload(module_);
}

absl::StatusOr<CudaFunction> DeviceKernels::Find(const std::string& name) {
  CudaFunction& function = functions_[name];
  if (function == nullptr) {
    COORDD_ASSIGN_OR_RETURN(DeviceScope scope, DeviceScope::Enter(*runtime_, device_));
    COORDD_RETURN_IF_ERROR(
        runtime_->Check(runtime_->cuda().ModuleGetFunction(&function, module_, name.c_str()),
                        absl::StrCat("cuModuleGetFunction ", name), device_));
  }
  return function;
}

absl::Status DeviceKernels::LaunchRows(CudaFunction function, const double* factor,
                                       int64_t bytes_per_count, absl::Span<const DeviceRow> rows,
                                       CudaStream stream) {
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

absl::Status DeviceKernels::Copy(absl::Span<const DeviceRow> rows, CudaStream stream) {
  COORDD_ASSIGN_OR_RETURN(const CudaFunction function, Find("coordd_copy"));
  return LaunchRows(function, nullptr, 1, rows, stream);
}

absl::Status DeviceKernels::Scale(DataType from, DataType to, double factor,
                                  absl::Span<const DeviceRow> rows, CudaStream stream) {
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

absl::Status DeviceKernels::Gate(const std::atomic<uint32_t>* word, CudaStream stream) {
  COORDD_ASSIGN_OR_RETURN(const CudaFunction function, Find("coordd_gate"));
  COORDD_ASSIGN_OR_RETURN(DeviceScope scope, DeviceScope::Enter(*runtime_, device_));
  void* arguments[] = {&word};
  return runtime_->Check(
      runtime_->cuda().LaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr),
      "cuLaunchKernel of the gate", device_);
}

}  // namespace coordd
