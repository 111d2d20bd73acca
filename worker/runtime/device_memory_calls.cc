#include "worker/runtime/device_memory_calls.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "worker/api/device_memory.h"
#include "worker/gpu/plane/window_claim.h"

namespace coordd {
namespace {

// What is planned while a schedule of device tensors is in force is staged. A rank breaks it that
// has been given eight such batches in a row (docs/design/nccl.md), and then some are on their way.
constexpr int kMarkersMax = 40;

using Submit = absl::FunctionRef<absl::StatusOr<std::shared_ptr<Work>>(Submission)>;

Submission Gathering(const DeviceRange& range, std::string name, int64_t bytes) {
  Submission submission;
  submission.spec.name = std::move(name);
  submission.spec.kind = CollectiveKind::kAllgather;
  submission.spec.dtype = DataType::kUint8;
  submission.spec.shape = {bytes};
  submission.spec.process_set = range.process_set;
  return submission;
}

// Whether the ranks' parts can be a window, which all of them read out of the same claims.
absl::StatusOr<bool> AgreeOnWindow(DevicePlane& devices, const DeviceRange& range,
                                   const DevicePlane::MemoryBegun& begun, absl::Time deadline,
                                   Submit submit) {
  if (!begun.windows.has_value()) return false;
  const auto claim = std::make_shared<const WindowClaim>(
      WindowClaim{range.size_bytes, DeviceMemorySize(range.memory), *begun.windows});
  Submission submission =
      Gathering(range, absl::StrCat("coordd.window/", ToInt(range.process_set), "/", begun.number),
                sizeof(WindowClaim));
  submission.input = claim.get();
  COORDD_ASSIGN_OR_RETURN(const std::shared_ptr<Work> work, submit(std::move(submission)));
  work->OnComplete([claim](const absl::Status&) {});  // until then it is read
  COORDD_RETURN_IF_ERROR(work->Wait(deadline));
  const WorkResult& result = work->result();
  const std::string why_not = WhyNoWindow(
      {result.owned_output.get(), static_cast<size_t>(result.output_bytes)}, result.size);
  if (!why_not.empty() && devices.IsFirstWithoutWindow()) {
    COORDD_LOG(kWarning,
               "memory of the program becomes no symmetric window, and is registered as "
               "any other: ",
               why_not, " (process set ", ToInt(range.process_set), ")");
  }
  return why_not.empty();
}

absl::Status Mark(DevicePlane& devices, const DeviceRange& range,
                  const DevicePlane::MemoryBegun& begun, absl::Time deadline, Submit submit) {
  COORDD_ASSIGN_OR_RETURN(const bool as_window,
                          AgreeOnWindow(devices, range, begun, deadline, submit));
  Submission submission = Gathering(
      range, devices.ExpectMemory(range.process_set, begun.number, as_window), /*bytes=*/1);
  submission.spec.memory = MemoryKind::kCuda;
  submission.device = range.device;
  submission.input = range.memory;
  COORDD_ASSIGN_OR_RETURN(const std::shared_ptr<Work> work, submit(std::move(submission)));
  return work->Wait(deadline);
}

}  // namespace

absl::Status RegisterWithNccl(DevicePlane& devices, const DeviceRange& range, absl::Time deadline,
                              Submit submit) {
  const absl::Span<std::byte> memory(static_cast<std::byte*>(range.memory),
                                     static_cast<size_t>(range.size_bytes));
  for (int i = 0; i < kMarkersMax; ++i) {
    COORDD_ASSIGN_OR_RETURN(const DevicePlane::MemoryBegun begun,
                            devices.BeginMemory(range.process_set, range.device, memory, deadline));
    const absl::Status status = Mark(devices, range, begun, deadline, submit);
    const bool launched = devices.WasLaunched(range.process_set, begun.number);
    COORDD_RETURN_IF_ERROR(status);
    if (launched) return absl::OkStatus();
  }
  return absl::UnavailableError(
      "no place was found in the order of the device: what is planned is staged as long as a "
      "schedule is in force");
}

}  // namespace coordd
