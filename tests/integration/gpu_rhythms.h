// Steps that repeat, and change, of a rank whose tensors are in GPU memory.
#pragma once

#include "tests/integration/gpu_rank.h"

namespace coordd {

// So many steps of gradients, which are executed by schedule once they have been the same; beside
// them a small tensor now and then, a large one more rarely, memory that is registered, and a while
// of much in another process set. The ranks come at different times. Every result is checked.
void Rhythms(RankOnDevice& r, int steps);

}  // namespace coordd
