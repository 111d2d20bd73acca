#include "client/examples/glm/data.h"

#include <cmath>

namespace glm {
namespace {

// What a number is made for.
constexpr uint64_t kOfRows = 0, kOfWeights = uint64_t{1} << 61, kOfNoise = uint64_t{1} << 62;

}  // namespace

double Uniform(uint64_t seed, uint64_t index) {
  uint64_t z = seed * 0x9E3779B97F4A7C15 + (index + 1) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  z ^= z >> 31;
  return static_cast<double>(z >> 11) * 0x1p-52 - 1;
}

Data MakeData(const DataOptions& options, int64_t begin, int64_t end) {
  const int64_t features = options.features;
  const double scale = 1 / std::sqrt(static_cast<double>(features));
  std::vector<double> weights(static_cast<size_t>(features));
  for (size_t j = 0; j < weights.size(); ++j) weights[j] = Uniform(options.seed, kOfWeights + j);
  Data data{.features = features};
  data.values.resize(static_cast<size_t>((end - begin) * features));
  data.labels.resize(static_cast<size_t>(end - begin));
  for (int64_t i = begin; i < end; ++i) {
    double* row = data.values.data() + (i - begin) * features;
    double score = 0;
    for (int64_t j = 0; j < features; ++j) {
      row[j] = scale * Uniform(options.seed, kOfRows + static_cast<uint64_t>(i * features + j));
      score += row[j] * weights[static_cast<size_t>(j)];
    }
    score += options.noise * Uniform(options.seed, kOfNoise + static_cast<uint64_t>(i));
    data.labels[static_cast<size_t>(i - begin)] = options.is_regression ? score
                                                  : score >= 0          ? 1
                                                                        : -1;
  }
  return data;
}

int64_t PartBegin(int64_t rows, int rank, int size) { return rows * rank / size; }

}  // namespace glm
