// Whether UCX is in this build: CMake compiles one of ucx_factory.cc and ucx_factory_absent.cc.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/transport/ucx/ucx_transport.h"

namespace coordd {

// Makes a transport as MakeUcxTransport does, of the library that is opened now.
// FAILED_PRECONDITION: it is not in this build, or cannot be opened, or is too old.
absl::StatusOr<std::unique_ptr<Transport>> TryMakeUcxTransport(const UcxTransportOptions& options,
                                                               Clock& clock);

}  // namespace coordd
