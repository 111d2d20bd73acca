// What a series of measurements says.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace coordd::bench {

// The value below which `part` (0 to 1) of `values` lie. 0 when there are none.
double Quantile(std::vector<double> values, double part);

inline double Median(std::vector<double> values) { return Quantile(std::move(values), 0.5); }

// How `costs` grow with `sizes`: the slope of a line through them with both axes logarithmic, by
// least squares. 1: in proportion. REQUIRES: as many of both, all above 0. 0 when fewer than two.
double Exponent(const std::vector<double>& sizes, const std::vector<double>& costs);

}  // namespace coordd::bench
