#include "worker/gpu/nccl/window_maker.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace coordd {

absl::StatusOr<bool> WindowMaker::Advance(NcclCommunicator& communicator, absl::Time now,
                                          absl::Duration limit) {
  if (!begun_) {
    begun_ = true;
    by_ = now + limit;
    COORDD_RETURN_IF_ERROR(communicator.RegisterWindow(memory_));
  }
  COORDD_ASSIGN_OR_RETURN(const bool pending, communicator.Pending());
  if (pending && now >= by_) {
    return absl::DeadlineExceededError(absl::StrCat(
        "not all ranks have registered a symmetric window within ", absl::FormatDuration(limit)));
  }
  return !pending;
}

}  // namespace coordd
