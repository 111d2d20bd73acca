// The user that runs this program. (io)
#pragma once

#include "common/base/environment.h"

namespace coordd {

// The environment with USER set, as `id -un` has it, where neither that nor LOGNAME is set, as in
// containers and services; "uid 1234" where the user has no name.
Environment WithUser(Environment environment);

}  // namespace coordd
