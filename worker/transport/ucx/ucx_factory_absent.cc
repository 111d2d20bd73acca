#include "worker/transport/ucx/ucx_factory.h"

namespace coordd {

absl::StatusOr<std::unique_ptr<Transport>> TryMakeUcxTransport(const UcxTransportOptions&, Clock&) {
  return absl::FailedPreconditionError(
      "ranks on several nodes need UCX, which this build of coordd does not have: install UCX "
      "(Debian: libucx-dev) and build with COORDD_WITH_UCX=ON, or run all ranks on one node");
}

}  // namespace coordd
