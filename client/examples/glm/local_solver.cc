#include "client/examples/glm/local_solver.h"

#include <algorithm>
#include <numeric>

namespace glm {
namespace {

// Four sums that do not wait for each other: the compiler may not reorder a sum of doubles itself.
double Dot(const double* a, const double* b, int64_t count) {
  double s0 = 0, s1 = 0, s2 = 0, s3 = 0;
  int64_t j = 0;
  for (; j + 4 <= count; j += 4) {
    s0 += a[j] * b[j];
    s1 += a[j + 1] * b[j + 1];
    s2 += a[j + 2] * b[j + 2];
    s3 += a[j + 3] * b[j + 3];
  }
  for (; j < count; ++j) s0 += a[j] * b[j];
  return (s0 + s1) + (s2 + s3);
}

}  // namespace

LocalSolver::LocalSolver(Loss loss, const Data& data, int64_t rows, double lambda, int workers,
                         uint64_t seed)
    : loss_(loss),
      data_(data),
      lambda_n_(lambda * static_cast<double>(rows)),
      caution_(workers),
      random_(seed),
      order_(static_cast<size_t>(data.rows())),
      duals_(static_cast<size_t>(data.rows())) {
  std::iota(order_.begin(), order_.end(), 0);
  for (int64_t i = 0; i < data.rows(); ++i)
    squared_lengths_.push_back(Dot(data.row(i), data.row(i), data.features));
}

std::vector<double> LocalSolver::Pass(const std::vector<double>& weights) {
  std::shuffle(order_.begin(), order_.end(), random_);
  std::vector<double> seen = weights;  // as if all changed them alike
  for (int64_t i : order_) {
    const size_t at = static_cast<size_t>(i);
    const double* row = data_.row(i);
    const double z = Dot(row, seen.data(), data_.features);
    const double next =
        Step(loss_, duals_[at], z, data_.labels[at], caution_ * squared_lengths_[at] / lambda_n_);
    const double change = caution_ * (next - duals_[at]) / lambda_n_;
    duals_[at] = next;
    if (change == 0) continue;
    for (int64_t j = 0; j < data_.features; ++j) seen[static_cast<size_t>(j)] += change * row[j];
  }
  for (size_t j = 0; j < seen.size(); ++j) seen[j] = (seen[j] - weights[j]) / caution_;
  return seen;
}

LocalSolver::Sums LocalSolver::SumsAt(const std::vector<double>& weights) const {
  Sums sums;
  for (int64_t i = 0; i < data_.rows(); ++i) {
    const size_t at = static_cast<size_t>(i);
    sums.loss += Value(loss_, Dot(data_.row(i), weights.data(), data_.features), data_.labels[at]);
    sums.dual += DualValue(loss_, duals_[at], data_.labels[at]);
  }
  return sums;
}

}  // namespace glm
