// What NVML's numbers mean, in words. PURE.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace coordd {

// What keeps the clocks down, but for having nothing to do, from the bits of
// nvmlDeviceGetCurrentClocksThrottleReasons. A bit that has no name here is "reason 0x200".
std::vector<std::string> SlowdownReasons(uint64_t bits);

// An XID with its meaning, "XID 79 (the GPU has fallen off the bus)"; without one where it is not
// common.
std::string XidText(uint64_t xid);

}  // namespace coordd
