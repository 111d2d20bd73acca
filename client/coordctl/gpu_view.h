// How the GPUs of a job's ranks are, as text for people. PURE
#pragma once

#include <string>

#include "coordd/v1/admin.pb.h"

namespace coordd {

// A line for each rank that has told how its GPU is, in the order of ranks; empty when none has.
std::string GpuHealthText(const v1::JobState& job);

}  // namespace coordd
