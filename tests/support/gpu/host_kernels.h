// coordd's kernels, compiled for the host from their own source: one "thread" runs after the other.
#pragma once

#include <cstdint>
#include <string>

#include "worker/gpu/cuda/device_kernels.h"

namespace coordd {

struct HostTable {
  DeviceRow rows[DeviceKernels::kRowsPerLaunch];
};

struct HostGrid {
  unsigned grid_x = 1, grid_y = 1, block_x = 1;
};

// Whether kernels.cu has such an entry.
bool IsHostKernel(const std::string& name);
// REQUIRES: it has, and it is not the gate.
void RunHostKernel(const std::string& name, const HostGrid& grid, const HostTable& table,
                   double factor);
// Returns when the word is no longer 1.
void RunHostGate(const uint32_t* word);

}  // namespace coordd
