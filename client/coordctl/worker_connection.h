// Reads how a worker here would speak to its coordd. (io)
#pragma once

#include "client/coordctl/whoami.h"
#include "common/base/environment.h"

namespace coordd {

// Of COORDD_TLS_*. A file that cannot be used is the connection's problem.
WorkerConnection ReadWorkerConnection(const Environment& environment);

}  // namespace coordd
