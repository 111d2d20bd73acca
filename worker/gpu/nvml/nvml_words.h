// What NVML's numbers mean, in words. PURE.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace coordd {

// Of nvmlDeviceGetCurrentClocksThrottleReasons: what keeps the clocks down, but for having nothing
// to do. A bit that has no name here is "reason 0x200".
std::vector<std::string> SlowdownReasons(uint64_t bits);

// "XID 79 (the GPU has fallen off the bus)"; without a meaning where it is not common.
std::string XidText(uint64_t xid);

}  // namespace coordd
