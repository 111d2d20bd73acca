// Where UCX's messages go. (io; only where UCX is built in)
#pragma once

#include "common/base/environment.h"
#include "worker/transport/ucx/ucx_api.h"

namespace coordd {

// To stderr, once and for good, unless UCX_LOG_FILE says where: UCX's default is stdout, which is
// the program's, and the variable is read when its libraries are loaded, which is before this.
void SendUcxLogToStderr(const UcxFunctions& ucx, const Environment& environment);

}  // namespace coordd
