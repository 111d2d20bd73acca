// One operation of the benchmark, as a program would call it.
#pragma once

#include <cstdint>
#include <string>

#include "bench/collectives/board.h"
#include "coordd/coordd.h"

namespace coordd::bench {

// float32, sum. `bytes` is the larger of a rank's two buffers.
struct Cell {
  Operation operation = kAllreduce;
  bool in_place = false;
  int64_t bytes = 0;
  float* input = nullptr;   // not used in place, nor by a broadcast
  float* output = nullptr;  // in place: both
};

// One thread. A call that fails ends the process, with a sentence on stderr.
class Calls {
 public:
  explicit Calls(Path path);
  ~Calls();
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;

  int32_t rank() const { return coordd_rank(worker_); }
  int32_t size() const { return coordd_size(worker_); }

  // Whether this path has such a call: that of names has no gathering or scattering in place.
  bool Has(const Cell& cell) const;
  void Run(const Cell& cell);
  // All ranks have come as far; then it says goodbye.
  void Leave();

 private:
  void RunBare(const Cell& cell);
  void RunNamed(const Cell& cell);

  const Path path_;
  coordd_worker_t* worker_ = nullptr;
  coordd_comm_t* comm_ = nullptr;
  int64_t calls_ = 0;
  std::string name_;
};

// Ends the process unless it is OK.
void Check(coordd_status_t status);

}  // namespace coordd::bench
