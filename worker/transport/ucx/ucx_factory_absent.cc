#include "worker/transport/ucx/ucx_factory.h"

namespace coordd {

absl::StatusOr<std::unique_ptr<Transport>> TryMakeUcxTransport(const UcxTransportOptions&, Clock&) {
  return absl::FailedPreconditionError(
      "UCX, which this build of coordd does not have, was asked for: install UCX "
      "(Debian: libucx-dev) and build with COORDD_WITH_UCX=ON, or leave COORDD_TRANSPORT at auto");
}

}  // namespace coordd
