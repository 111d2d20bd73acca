// What one worker does between two sums over all of them.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "client/examples/glm/data.h"
#include "client/examples/glm/loss.h"

namespace glm {

// CoCoA with adding (Ma et al., ICML 2015): each worker improves the dual variables of its own rows
// by coordinate ascent, as if each of the others changed the weights as much as it does; the sum of
// all changes is then never too much.
//
// One thread owns it.
class LocalSolver {
 public:
  // `data` outlives it. `rows`: of all workers together.
  LocalSolver(Loss loss, const Data& data, int64_t rows, double lambda, int workers, uint64_t seed);

  // Goes through its rows once, in an order that changes. The change of the weights, which is to be
  // added to `weights` together with those of the others.
  std::vector<double> Pass(const std::vector<double>& weights);

  // Sums over its rows: of losses, and of what they give to the dual.
  struct Sums {
    double loss = 0, dual = 0;
  };
  Sums SumsAt(const std::vector<double>& weights) const;

 private:
  // Constant after construction.
  const Loss loss_;
  const Data& data_;
  const double lambda_n_;
  const double caution_;  // how many workers there are
  std::vector<double> squared_lengths_;

  std::mt19937_64 random_;
  std::vector<int64_t> order_;
  std::vector<double> duals_;  // by row
};

}  // namespace glm
