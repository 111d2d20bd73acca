#include "worker/runtime/device_memory_calls.h"

#include <string>
#include <utility>

#include "common/base/status_macros.h"

namespace coordd {
namespace {

// What is planned while a schedule of device tensors is in force is staged. A rank breaks it that
// has been given eight such batches in a row (docs/design/nccl.md), and then some are on their way.
constexpr int kMarkersMax = 40;

}  // namespace

absl::Status RegisterWithNccl(
    DevicePlane& devices, const DeviceRange& range, absl::Time deadline,
    absl::FunctionRef<absl::StatusOr<std::shared_ptr<Work>>(Submission)> submit) {
  const absl::Span<std::byte> memory(static_cast<std::byte*>(range.memory),
                                     static_cast<size_t>(range.size_bytes));
  for (int i = 0; i < kMarkersMax; ++i) {
    COORDD_ASSIGN_OR_RETURN(
        const std::string marker,
        devices.ExpectMemory(range.process_set, range.device, memory, deadline));
    Submission submission;
    submission.spec.name = marker;
    submission.spec.kind = CollectiveKind::kAllgather;
    submission.spec.dtype = DataType::kUint8;
    submission.spec.shape = {1};
    submission.spec.process_set = range.process_set;
    submission.spec.memory = MemoryKind::kCuda;
    submission.device = range.device;
    submission.input = range.memory;
    const absl::StatusOr<std::shared_ptr<Work>> work = submit(std::move(submission));
    const absl::Status status = work.ok() ? (*work)->Wait(deadline) : work.status();
    const bool launched = devices.WasLaunched(marker);
    COORDD_RETURN_IF_ERROR(status);
    if (launched) return absl::OkStatus();
  }
  return absl::UnavailableError(
      "no place was found in the order of the device: what is planned is staged as long as a "
      "schedule is in force");
}

}  // namespace coordd
