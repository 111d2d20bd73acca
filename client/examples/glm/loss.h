// The three losses, with what their duals need. PURE.
//
// min over w:  P(w) = 1/n sum_i loss(x_i w, y_i) + lambda/2 |w|^2
// max over a:  D(a) = 1/n sum_i -conjugate(-a_i, y_i) - lambda/2 |w(a)|^2,  w(a) = sum_i a_i x_i /
// (lambda n)
//
// P(w) >= D(a) for all w and a: the gap between them bounds how far w is from the best.
#pragma once

#include <optional>
#include <string>

namespace glm {

enum class Loss {
  kRidge,     // (z - y)^2 / 2
  kSvm,       // max(0, 1 - y z)
  kLogistic,  // log(1 + exp(-y z))
};
std::optional<Loss> LossNamed(const std::string& name);  // "ridge", "svm", "logistic"

double Value(Loss loss, double z, double y);
// -conjugate(-a, y): what the row gives to the dual. REQUIRES: a is one that Step returns, or 0.
double DualValue(Loss loss, double a, double y);
// The `a` that is best for the dual when only this row's changes (Shalev-Shwartz and Zhang, JMLR
// 2013), from `a` and z = x w. `q` is |x|^2 / (lambda n), times how cautious the worker has to be.
double Step(Loss loss, double a, double z, double y, double q);

}  // namespace glm
