// How long a small synchronous allreduce takes: the whole way through coordd and back. One of the
// workers of a job:
//
//     coordrun -np 2 -- sync_latency [elements] [rounds]
//
// Prints the distribution over the rounds on rank 0.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "coordd/coordd.h"

namespace {

void Check(coordd_status_t status) {
  if (status == COORDD_OK) return;
  std::fprintf(stderr, "sync_latency: %s\n", coordd_last_error());
  std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t elements = argc > 1 ? std::atoll(argv[1]) : 1;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 2000;
  if (elements < 1 || rounds < 1) return 2;
  coordd_worker_t* worker = nullptr;
  Check(coordd_worker_start(nullptr, &worker));
  std::vector<float> values(static_cast<size_t>(elements), 1.0f);
  coordd_tensor_t tensor = COORDD_TENSOR_INIT;
  tensor.name = "value";
  tensor.input = tensor.output = values.data();
  tensor.shape = &elements;
  tensor.ndim = 1;
  tensor.dtype = COORDD_FLOAT32;
  std::vector<double> taken_us;
  for (int i = 0; i < rounds; ++i) {
    const auto start = std::chrono::steady_clock::now();
    Check(coordd_allreduce(worker, &tensor, COORDD_AVERAGE, nullptr, nullptr));
    const std::chrono::duration<double, std::micro> taken =
        std::chrono::steady_clock::now() - start;
    taken_us.push_back(taken.count());
  }
  if (coordd_rank(worker) == 0) {
    std::sort(taken_us.begin(), taken_us.end());
    auto at = [&](double part) {
      return taken_us[static_cast<size_t>(part * static_cast<double>(rounds - 1))];
    };
    std::printf(
        "allreduce of %lld floats on %d ranks: median %.1f us, 10%% %.1f, 90%% %.1f, 99%% "
        "%.1f\n",
        static_cast<long long>(elements), coordd_size(worker), at(0.5), at(0.1), at(0.9), at(0.99));
  }
  Check(coordd_worker_shutdown(worker, 10));
  coordd_worker_destroy(worker);
  return 0;
}
