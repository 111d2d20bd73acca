// Waiting for submitted tensors and reading their results.
#include "client/c_api/c_api_internal.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "worker/gpu/cuda/device_handles.h"
#include "worker/gpu/cuda/result_memory.h"

namespace coordd {
namespace {

// The status it ended with; FAILED_PRECONDITION while it runs.
absl::Status StatusOfDone(const coordd_work& handle) {
  if (!handle.work->done() && handle.work->enqueued()) return absl::OkStatus();
  if (!handle.work->done()) {
    return absl::FailedPreconditionError(
        absl::StrCat("tensor ", handle.work->spec().name, ": still running, it has no result yet"));
  }
  return handle.work->Wait(absl::InfinitePast());
}

coordd_result_t ResultOf(const coordd_work& handle) {
  const WorkResult& result = handle.work->result();
  coordd_result_t out = COORDD_RESULT_INIT;
  out.generation = ToInt(result.generation);
  out.size = result.size;
  out.output = handle.output != nullptr ? handle.output : result.owned_output.get();
  const std::vector<int64_t>& shape = result.output_shape;
  out.output_bytes = result.output_bytes;
  out.ndim = static_cast<int32_t>(shape.size());
  out.shape = shape.data();
  if (!result.received_splits.empty()) {
    out.received_splits = result.received_splits.data();
    out.num_received_splits = static_cast<int32_t>(result.received_splits.size());
  }
  return out;
}

}  // namespace
}  // namespace coordd

using coordd::AtBorder;

extern "C" {

coordd_status_t coordd_work_wait(const coordd_work_t* work, double timeout_seconds) {
  return AtBorder([&]() -> absl::Status {
    if (work == nullptr) return coordd::NullArgument("work");
    if (work->InForkedChild()) return coordd::ForkedChild("the work");
    // Every work ends by its own deadline, so that waiting for ever does not.
    if (timeout_seconds < 0) return work->work->Wait(absl::InfiniteFuture());
    COORDD_ASSIGN_OR_RETURN(const absl::Duration timeout,
                            coordd::TimeoutFromSeconds(timeout_seconds));
    return work->work->Wait(coordd::Clock::Real().Now() + timeout);
  });
}

coordd_status_t coordd_work_wait_on_stream(const coordd_work_t* work, void* stream,
                                           double timeout_seconds) {
  return AtBorder([&]() -> absl::Status {
    if (work == nullptr) return coordd::NullArgument("work");
    if (work->InForkedChild()) return coordd::ForkedChild("the work");
    absl::Time deadline = absl::InfiniteFuture();
    if (timeout_seconds >= 0) {
      COORDD_ASSIGN_OR_RETURN(const absl::Duration timeout,
                              coordd::TimeoutFromSeconds(timeout_seconds));
      deadline = coordd::Clock::Real().Now() + timeout;
    }
    COORDD_ASSIGN_OR_RETURN(const std::shared_ptr<coordd::DeviceEvent> event,
                            work->work->AwaitEnqueued(deadline));
    const auto reader = static_cast<coordd::CudaStream>(stream);
    if (event != nullptr) COORDD_RETURN_IF_ERROR(event->LetWait(reader));
    coordd::ResultMemory::NoteReader(work->work->owned_output(), reader);
    return absl::OkStatus();
  });
}

int32_t coordd_work_poll(const coordd_work_t* work) {
  if (work == nullptr) return -1;
  return !work->InForkedChild() && work->work->done() ? 1 : 0;
}

const char* coordd_work_name(const coordd_work_t* work) {
  return work == nullptr ? "" : work->work->spec().name.c_str();
}

coordd_status_t coordd_work_result(const coordd_work_t* work, coordd_result_t* result) {
  return AtBorder([&]() -> absl::Status {
    if (work == nullptr) return coordd::NullArgument("work");
    if (work->InForkedChild()) return coordd::ForkedChild("the work");
    COORDD_RETURN_IF_ERROR(coordd::StatusOfDone(*work));
    return coordd::CopyOut(coordd::ResultOf(*work), result, "result");
  });
}

coordd_status_t coordd_work_on_complete(coordd_work_t* work, coordd_done_t done, void* user) {
  return AtBorder([&]() -> absl::Status {
    if (work == nullptr) return coordd::NullArgument("work");
    if (done == nullptr) return coordd::NullArgument("done");
    if (work->InForkedChild()) return coordd::ForkedChild("the work");
    work->work->OnComplete([done, user](const absl::Status& status) {
      done(user, static_cast<coordd_status_t>(status.code()),
           std::string(status.message()).c_str());
    });
    return absl::OkStatus();
  });
}

void coordd_work_release(coordd_work_t* work) {
  // In a forked child the work's mutex may be held for ever by a thread that is not there: what the
  // parent's heap copy holds is left alone.
  if (work == nullptr || work->InForkedChild()) return;
  coordd::ResultMemory::NoteReleased(work->work->owned_output());
  delete work;
}

}  // extern "C"
