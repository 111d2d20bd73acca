#include "worker/runtime/device_memory_calls.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

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

// Of a meeting, to which who stops waiting comes back: coordd does not let it be withdrawn.
constexpr absl::Duration kMeetingTimeout = absl::Hours(24 * 365);

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

// A registration of memory that has begun.
struct Registering {
  DevicePlane& devices;
  const DeviceRange& range;
  int64_t number;
  absl::Time deadline;
  Submit submit;
  std::vector<int32_t> ranks = {};  // of the set
  int64_t meeting = 0;
  bool others_were_late = false;
};

absl::Status Meet(Registering& call) {
  const ProcessSetId process_set = call.range.process_set;
  std::optional<std::vector<int32_t>> ranks = call.devices.MembersOf(process_set);
  if (!ranks.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("process set ", ToInt(process_set), " has been removed"));
  }
  call.ranks = *std::move(ranks);
  static constexpr std::byte kNothing{};
  const auto submit = [&call](std::string name) {
    Submission submission = Gathering(call.range, std::move(name), sizeof(kNothing));
    submission.input = &kNothing;
    submission.timeout = kMeetingTimeout;
    return call.submit(std::move(submission));
  };
  COORDD_ASSIGN_OR_RETURN(
      call.meeting, call.devices.meetings().Meet(process_set, call.ranks, call.deadline, submit));
  return absl::OkStatus();
}

// What is waited for has a name that the program does not know. CANCELLED: another rank has
// withdrawn it, whose patience was over.
absl::Status Await(Registering& call, Work& work) {
  absl::Status status = work.Wait(call.deadline);
  call.others_were_late = absl::IsDeadlineExceeded(status) || absl::IsCancelled(status);
  return status;
}

// Whether the ranks' parts can be a window, which all of them read out of the same claims.
absl::StatusOr<bool> AgreeOnWindow(Registering& call, int64_t windows) {
  const DeviceRange& range = call.range;
  const auto claim = std::make_shared<const WindowClaim>(
      WindowClaim{range.size_bytes, DeviceMemorySize(range.memory), windows});
  Submission submission =
      Gathering(range, absl::StrCat("coordd.window/", ToInt(range.process_set), "/", call.meeting),
                sizeof(WindowClaim));
  submission.input = claim.get();
  COORDD_ASSIGN_OR_RETURN(const std::shared_ptr<Work> work, call.submit(std::move(submission)));
  work->OnComplete([claim](const absl::Status&) {});  // until then it is read
  COORDD_RETURN_IF_ERROR(Await(call, *work));
  const WorkResult& result = work->result();
  const std::string why_not = WhyNoWindow(
      {result.owned_output.get(), static_cast<size_t>(result.output_bytes)}, result.size);
  if (!why_not.empty() && call.devices.IsFirstWithoutWindow()) {
    COORDD_LOG(kWarning,
               "memory of the program becomes no symmetric window, and is registered as "
               "any other: ",
               why_not, " (process set ", ToInt(range.process_set), ")");
  }
  return why_not.empty();
}

absl::Status Mark(Registering& call, bool as_window) {
  const DeviceRange& range = call.range;
  Submission submission = Gathering(
      range, call.devices.ExpectMemory(range.process_set, call.number, call.meeting, as_window),
      /*bytes=*/1);
  submission.spec.memory = MemoryKind::kCuda;
  submission.device = range.device;
  submission.input = range.memory;
  COORDD_ASSIGN_OR_RETURN(const std::shared_ptr<Work> work, call.submit(std::move(submission)));
  return Await(call, *work);
}

// Behind the meeting.
absl::Status RegisterTogether(Registering& call, int64_t windows) {
  const DeviceRange& range = call.range;
  COORDD_ASSIGN_OR_RETURN(bool as_window,
                          call.devices.AwaitMemory(range.process_set, range.device, call.deadline));
  if (as_window) {
    COORDD_ASSIGN_OR_RETURN(as_window, AgreeOnWindow(call, windows));
  }
  for (int i = 0; i < kMarkersMax; ++i) {
    COORDD_RETURN_IF_ERROR(Mark(call, as_window));
    if (call.devices.WasLaunched(range.process_set, call.number)) return absl::OkStatus();
  }
  return absl::UnavailableError(
      "no place was found in the order of the device: what is planned is staged as long as a "
      "schedule is in force");
}

absl::Status Register(Registering call) {
  const DeviceRange& range = call.range;
  const absl::Span<std::byte> memory(static_cast<std::byte*>(range.memory),
                                     static_cast<size_t>(range.size_bytes));
  COORDD_ASSIGN_OR_RETURN(
      const int64_t windows,
      call.devices.AwaitTurn(range.process_set, call.number, range.device, memory, call.deadline));
  COORDD_RETURN_IF_ERROR(Meet(call));
  absl::Status status = RegisterTogether(call, windows);
  if (status.ok()) return status;
  // NCCL knows it on all ranks as soon as the marker is launched, which the device may do late.
  if (call.others_were_late && call.devices.WasLaunched(range.process_set, call.number))
    return absl::OkStatus();
  // Whoever comes late need not wait for this rank.
  MemoryMeetings& meetings = call.devices.meetings();
  meetings.GiveUp(range.process_set, call.meeting);
  if (!call.others_were_late) return status;
  return meetings.TooLong(range.process_set, call.ranks, call.meeting);
}

}  // namespace

absl::Status RegisterWithNccl(DevicePlane& devices, const DeviceRange& range, absl::Time deadline,
                              Submit submit) {
  const int64_t number = devices.BeginMemory(range.process_set);
  const absl::Status status = Register({devices, range, number, deadline, submit});
  devices.EndMemory(range.process_set, number);
  return status;
}

}  // namespace coordd
