#include "client/coordctl/exit_code.h"

namespace coordd {

ExitCode ExitCodeOf(const absl::Status& failure) {
  switch (failure.code()) {
    case absl::StatusCode::kNotFound:
      return kNoJob;
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return kNotAllowed;
    default:
      return kFailed;
  }
}

ExitCode ExitCodeOfChange(const absl::Status& failure) {
  if (absl::IsInvalidArgument(failure)) return kUsage;
  return absl::IsFailedPrecondition(failure) ? kRefused : ExitCodeOf(failure);
}

}  // namespace coordd
