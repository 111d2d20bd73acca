// One operation of the benchmark, as a program of some library would call it. A library is a file
// that implements this: calls_coordd.cc; bench/peers has those of the peers.
#pragma once

#include <cstdint>
#include <memory>

#include "bench/collectives/board.h"

namespace coordd::bench {

// float32, sum. `bytes` is the larger of a rank's two buffers.
struct Cell {
  Operation operation = kAllreduce;
  bool in_place = false;
  int64_t bytes = 0;
  float* input = nullptr;   // not used in place, nor by a broadcast
  float* output = nullptr;  // in place: both
};

// One thread. What fails ends the process, with a sentence on stderr.
class Calls {
 public:
  // Joins the others. A library may change its arguments.
  static std::unique_ptr<Calls> Start(const CollectivesPlan& plan, int* argc, char*** argv);
  virtual ~Calls() = default;

  virtual int32_t rank() const = 0;

  // Memory for one of the two buffers, aligned to 2 MiB; nullptr: any will do.
  virtual float* Buffer(int64_t /*bytes*/) { return nullptr; }
  // Whether there is such a call.
  virtual bool Has(const Cell& cell) const = 0;
  // Before the first Run of a cell.
  virtual void Prepare(const Cell& /*cell*/) {}
  virtual void Run(const Cell& cell) = 0;
  // Whether a rank's part of a reduce_scatter in place goes to the front of the buffer, not to
  // where its block is.
  virtual bool ScattersToTheFront() const { return false; }
  // For those who wait in the bench's own barrier, now and then.
  virtual void Progress() {}
  // All ranks have come as far; then it says goodbye.
  virtual void Leave() = 0;
};

}  // namespace coordd::bench
