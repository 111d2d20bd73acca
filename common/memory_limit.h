// How much memory this process may have. (io)
#pragma once

#include <cstddef>

namespace coordd {

// The smallest of the machine's memory, its control group's bound (of the group itself: cgroup v2)
// and the address space that it may have (ulimit -v).
size_t MemoryLimit();

}  // namespace coordd
