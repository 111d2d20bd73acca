// Programs for the simulator of schedules: steps that repeat and change, uneven ends, process sets.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/sim/schedule_sim.h"

namespace coordd {

// For two to four ranks, which belong together. The same for the same seed.
std::vector<SimProgram> RandomPrograms(uint64_t seed);

}  // namespace coordd
