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
// REQUIRES: it has, and it is neither the gate nor the seal.
void RunHostKernel(const std::string& name, const HostGrid& grid, const HostTable& table,
                   double factor);
// Return when the word is no longer 1, or the limit is over: then HostContextEnded.
void RunHostGate(const uint32_t* word, uint64_t limit_nanoseconds);
void RunHostSeal(unsigned threads, const HostTable& table, const uint32_t* word,
                 uint64_t limit_nanoseconds, unsigned rows);
// Whether a kernel has ended the context (a trap).
bool HostContextEnded();

}  // namespace coordd
