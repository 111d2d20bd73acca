#include "tests/support/gpu/host_kernels.h"

#include <atomic>
#include <bit>
#include <chrono>
#include <functional>
#include <map>

#include "tests/support/gpu/fake_rest.h"
#include "worker/numeric/half.h"

// What kernels.cu finds on a device.
#define __device__
#define __global__

namespace {
struct Index {
  unsigned x, y;
};
thread_local Index blockIdx, threadIdx, blockDim, gridDim;
void __nanosleep(unsigned) {
  thread_local coordd::FakeRest rest;
  rest.Once();
}
std::atomic<bool> context_ended = false;
}  // namespace

namespace coordd_kernels {
inline unsigned long long Nanoseconds() {
  return static_cast<unsigned long long>(std::chrono::steady_clock::now().time_since_epoch() /
                                         std::chrono::nanoseconds(1));
}
inline void EndContext() { context_ended = true; }
}  // namespace coordd_kernels

#include "worker/gpu/cuda/kernels.cu"

namespace coordd {
namespace {

using Kernel = void (*)(const coordd_kernels::Table, double);

static_assert(sizeof(coordd_kernels::Table) == sizeof(HostTable));

void Copy(const coordd_kernels::Table table, double) { coordd_copy(table); }

const std::map<std::string, Kernel>& Kernels() {
  static const std::map<std::string, Kernel> kernels = {
      {"coordd_copy", Copy},
      {"coordd_scale_uint8", coordd_scale_uint8},
      {"coordd_scale_int8", coordd_scale_int8},
      {"coordd_scale_uint16", coordd_scale_uint16},
      {"coordd_scale_int16", coordd_scale_int16},
      {"coordd_scale_uint32", coordd_scale_uint32},
      {"coordd_scale_int32", coordd_scale_int32},
      {"coordd_scale_uint64", coordd_scale_uint64},
      {"coordd_scale_int64", coordd_scale_int64},
      {"coordd_scale_float16", coordd_scale_float16},
      {"coordd_scale_bfloat16", coordd_scale_bfloat16},
      {"coordd_scale_float8_e4m3fn", coordd_scale_float8_e4m3fn},
      {"coordd_scale_float8_e5m2", coordd_scale_float8_e5m2},
      {"coordd_scale_float32", coordd_scale_float32},
      {"coordd_scale_float64", coordd_scale_float64},
      {"coordd_scale_bool", coordd_scale_bool},
      {"coordd_cast_float32_float16", coordd_cast_float32_float16},
      {"coordd_cast_float32_bfloat16", coordd_cast_float32_bfloat16},
      {"coordd_cast_float16_float32", coordd_cast_float16_float32},
      {"coordd_cast_bfloat16_float32", coordd_cast_bfloat16_float32},
  };
  return kernels;
}

}  // namespace

bool IsHostKernel(const std::string& name) {
  return name == "coordd_gate" || name == "coordd_seal" || Kernels().count(name) > 0;
}

void RunHostKernel(const std::string& name, const HostGrid& grid, const HostTable& table,
                   double factor) {
  const Kernel kernel = Kernels().at(name);
  const auto& rows = reinterpret_cast<const coordd_kernels::Table&>(table);
  gridDim = {grid.grid_x, grid.grid_y};
  blockDim = {grid.block_x, 1};
  for (blockIdx.y = 0; blockIdx.y < grid.grid_y; ++blockIdx.y) {
    for (blockIdx.x = 0; blockIdx.x < grid.grid_x; ++blockIdx.x) {
      for (threadIdx.x = 0; threadIdx.x < grid.block_x; ++threadIdx.x) kernel(rows, factor);
    }
  }
}

void RunHostGate(const uint32_t* word, uint64_t limit_nanoseconds) {
  coordd_gate(word, limit_nanoseconds);
}

void RunHostSeal(unsigned threads, const HostTable& table, const uint32_t* word,
                 uint64_t limit_nanoseconds, unsigned rows) {
  blockDim = {threads, 1};
  // A trap of one thread is the end of all.
  for (threadIdx.x = 0; threadIdx.x < threads && !context_ended; ++threadIdx.x) {
    coordd_seal(reinterpret_cast<const coordd_kernels::Table&>(table), word, limit_nanoseconds,
                rows);
  }
}

bool HostContextEnded() { return context_ended; }

}  // namespace coordd
