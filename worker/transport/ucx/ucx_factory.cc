#include "worker/transport/ucx/ucx_factory.h"

#include "absl/strings/str_cat.h"
#include "common/machine/ucx_library.h"
#include "worker/transport/ucx/ucx_api.h"

namespace coordd {

absl::StatusOr<std::unique_ptr<Transport>> TryMakeUcxTransport(const UcxTransportOptions& options,
                                                               Clock& clock) {
  const absl::StatusOr<UcxFunctions> ucx = LoadUcx(options.environment);
  if (ucx.ok()) return MakeUcxTransport(*ucx, options, clock);
  return absl::FailedPreconditionError(
      absl::StrCat("UCX cannot be used: ", ucx.status().message(),
                   "; install it (Debian: libucx0), name its libucp.so.0 with ", kUcxVariable,
                   ", or leave COORDD_TRANSPORT at auto"));
}

}  // namespace coordd
