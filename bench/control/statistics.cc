#include "bench/control/statistics.h"

#include <algorithm>
#include <cmath>

namespace coordd::bench {

double Quantile(std::vector<double> values, double part) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(part * static_cast<double>(values.size() - 1))];
}

double Exponent(const std::vector<double>& sizes, const std::vector<double>& costs) {
  const size_t n = sizes.size();
  if (n < 2) return 0;
  double x_mean = 0, y_mean = 0;
  for (size_t i = 0; i < n; ++i) {
    x_mean += std::log(sizes[i]) / static_cast<double>(n);
    y_mean += std::log(costs[i]) / static_cast<double>(n);
  }
  double covariance = 0, variance = 0;
  for (size_t i = 0; i < n; ++i) {
    covariance += (std::log(sizes[i]) - x_mean) * (std::log(costs[i]) - y_mean);
    variance += (std::log(sizes[i]) - x_mean) * (std::log(sizes[i]) - x_mean);
  }
  return variance > 0 ? covariance / variance : 0;
}

}  // namespace coordd::bench
