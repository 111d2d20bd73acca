#include "worker/ucx_factory.h"

namespace coordd {

absl::StatusOr<std::unique_ptr<Transport>> TryMakeUcxTransport(const UcxTransportOptions& options,
                                                               Clock& clock) {
  return MakeUcxTransport(options, clock);
}

}  // namespace coordd
