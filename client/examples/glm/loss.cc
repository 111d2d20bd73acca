#include "client/examples/glm/loss.h"

#include <algorithm>
#include <cmath>

namespace glm {
namespace {

double TimesLog(double b) { return b > 0 ? b * std::log(b) : 0; }

// The b in (0, 1) with log(b / (1 - b)) + q (b - b0) + m = 0, which grows with b: Newton's steps,
// kept between the last two that had the zero between them.
double LogisticStep(double b0, double m, double q) {
  double low = 0, high = 1;
  double b = std::clamp(b0, 1e-6, 1 - 1e-6);
  for (int i = 0; i < 60; ++i) {
    const double slope = std::log(b / (1 - b)) + q * (b - b0) + m;
    (slope > 0 ? high : low) = b;
    double next = b - slope / (1 / (b * (1 - b)) + q);
    if (next <= low || next >= high) next = (low + high) / 2;
    if (std::abs(next - b) < 1e-12) return next;
    b = next;
  }
  return b;
}

}  // namespace

std::optional<Loss> LossNamed(const std::string& name) {
  if (name == "ridge") return Loss::kRidge;
  if (name == "svm") return Loss::kSvm;
  if (name == "logistic") return Loss::kLogistic;
  return std::nullopt;
}

double Value(Loss loss, double z, double y) {
  switch (loss) {
    case Loss::kRidge:
      return (z - y) * (z - y) / 2;
    case Loss::kSvm:
      return std::max(0.0, 1 - y * z);
    case Loss::kLogistic:
      return y * z > 0 ? std::log1p(std::exp(-y * z)) : std::log1p(std::exp(y * z)) - y * z;
  }
  return 0;
}

double DualValue(Loss loss, double a, double y) {
  const double b = a * y;
  switch (loss) {
    case Loss::kRidge:
      return y * a - a * a / 2;
    case Loss::kSvm:
      return b;
    case Loss::kLogistic:
      return -TimesLog(b) - TimesLog(1 - b);
  }
  return 0;
}

double Step(Loss loss, double a, double z, double y, double q) {
  switch (loss) {
    case Loss::kRidge:
      return a + (y - z - a) / (1 + q);
    case Loss::kSvm:
      // A row of zeros is on neither side of anything.
      return y * (q > 0 ? std::clamp(a * y + (1 - y * z) / q, 0.0, 1.0) : 1.0);
    case Loss::kLogistic:
      return y * LogisticStep(a * y, y * z, q);
  }
  return a;
}

}  // namespace glm
