// Rows to learn from, made of a number, so that each worker makes its own and nobody has them all.
#pragma once

#include <cstdint>
#include <vector>

namespace glm {

struct DataOptions {
  int64_t rows = 20'000;
  int64_t features = 50;
  uint64_t seed = 1;
  double noise = 0.1;
  bool is_regression = false;  // else labels are -1 and 1
};

// Rows begin, begin + 1, ... of all: one worker's part.
struct Data {
  int64_t features = 0;
  std::vector<double> values;  // row by row
  std::vector<double> labels;

  int64_t rows() const { return static_cast<int64_t>(labels.size()); }
  const double* row(int64_t i) const { return values.data() + i * features; }
};

// The same rows whatever the parts: features are uniform in [-1, 1) over the square root of their
// number, so that a row has a length of about 0.6; the label is that of weights made of the seed,
// with noise. client/examples/python/glm.py makes the same.
Data MakeData(const DataOptions& options, int64_t begin, int64_t end);

// Where the part of `rank` begins; of rank == size: the end.
int64_t PartBegin(int64_t rows, int rank, int size);

// Uniform in [-1, 1): splitmix64 (Steele, Lea and Flood, OOPSLA 2014), its upper 53 bits.
double Uniform(uint64_t seed, uint64_t index);

}  // namespace glm
