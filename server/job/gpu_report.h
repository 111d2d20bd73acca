// What a member's GPU has to do with its being late or lost, in words. PURE.
#pragma once

#include <string>

#include "coordd/v1/types.pb.h"

namespace coordd {

// How a sentence about the member goes on: "; the driver of its GPU GPU-8f3c… has reported XID 79,
// 12 s before". "": there is nothing to be said.
std::string GpuReport(const v1::GpuHealth& health);

}  // namespace coordd
