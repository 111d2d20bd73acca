// OMP_NUM_THREADS of workers that share a host, which would else each start a thread on every core:
// torchrun sets it to 1, coordrun to a worker's share of the cores. Part of torch's environment.
// Values in, values out.
#pragma once

#include <cstdint>
#include <string>

#include "client/coordrun/plan/run_options.h"
#include "client/coordrun/plan/run_plan.h"
#include "common/base/environment.h"

namespace coordd {

// At least 1. `cores`: that the workers may use together. 0: there is one worker, which may take
// what it likes.
int32_t ThreadsEach(int32_t cores, int32_t workers);

// The share of a process that is one of `workers` on a node of `node_cores`, each with a set of
// `cores` cores, which are different ones where there are enough.
int32_t ThreadsOfTask(int32_t cores, int32_t workers, int32_t node_cores);

// OMP_NUM_THREADS, unless `environment` has it, be it empty. `threads` 0: nothing.
Environment ThreadVariables(int32_t threads, const Environment& environment);

// One line for the user about what workers are given; empty: nothing is set. `cores`: of this
// machine.
std::string ThreadsNote(const RunOptions& options, const RunPlan& plan,
                        const Environment& environment, int32_t cores);

}  // namespace coordd
