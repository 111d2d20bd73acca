#include "client/examples/digits/perceptron.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace digits {
namespace {

// outputs[o] = bias[o] + row[o] . inputs
template <typename In>
void Apply(const Layer<float>& layer, const In* inputs, double* outputs) {
  for (int o = 0; o < layer.outputs; ++o) {
    const float* row = layer.row(o);
    double sum = layer.bias(o);
    for (int i = 0; i < layer.inputs; ++i) sum += static_cast<double>(row[i]) * inputs[i];
    outputs[o] = sum;
  }
}

// gradient of a layer from one image: the outer product of its errors and its inputs.
template <typename In>
void Accumulate(const double* errors, const In* inputs, Layer<double>& gradient) {
  for (int o = 0; o < gradient.outputs; ++o) {
    if (errors[o] == 0) continue;  // half of the rectified units are off
    double* row = gradient.row(o);
    for (int i = 0; i < gradient.inputs; ++i) row[i] += errors[o] * inputs[i];
    gradient.bias(o) += errors[o];
  }
}

// Turns scores into probabilities in place.
void Softmax(double* scores) {
  const double largest = *std::max_element(scores, scores + kClasses);
  double sum = 0;
  for (int c = 0; c < kClasses; ++c) sum += scores[c] = std::exp(scores[c] - largest);
  for (int c = 0; c < kClasses; ++c) scores[c] /= sum;
}

void InitialiseLayer(std::mt19937_64& random, Layer<float>& layer) {
  // Box-Muller by hand: std::normal_distribution differs between standard libraries.
  const auto uniform = [&random] { return (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53; };
  constexpr double kTwoPi = 6.283185307179586;
  const double deviation = std::sqrt(2.0 / layer.inputs);
  std::fill(layer.values.begin(), layer.values.end(), 0.0f);
  for (int k = 0; k < layer.outputs * layer.inputs; ++k) {
    const double radius = std::sqrt(-2 * std::log(uniform()));
    layer.values[static_cast<size_t>(k)] =
        static_cast<float>(deviation * radius * std::cos(kTwoPi * uniform()));
  }
}

}  // namespace

void Initialise(uint64_t seed, Parameters& parameters) {
  std::mt19937_64 random(seed);
  InitialiseLayer(random, parameters.hidden);
  InitialiseLayer(random, parameters.output);
}

Score Perceptron::Forward(const Image* const* images, size_t count,
                          Activations& activations) const {
  const size_t units = static_cast<size_t>(parameters_.hidden.outputs);
  activations.hidden.resize(count * units);
  activations.errors.resize(count * kClasses);
  Score score;
  for (size_t n = 0; n < count; ++n) {
    double* const hidden = activations.hidden.data() + n * units;
    double* const errors = activations.errors.data() + n * kClasses;
    Apply(parameters_.hidden, images[n]->pixels.data(), hidden);
    for (size_t u = 0; u < units; ++u) hidden[u] = std::max(hidden[u], 0.0);
    Apply(parameters_.output, hidden, errors);
    const int guess = static_cast<int>(std::max_element(errors, errors + kClasses) - errors);
    Softmax(errors);
    score.loss -= std::log(std::max(errors[images[n]->label], 1e-300));
    score.correct += guess == images[n]->label ? 1 : 0;
    errors[images[n]->label] -= 1;  // the derivative of the cross entropy by the scores
  }
  score.images = static_cast<int64_t>(count);
  return score;
}

Score Perceptron::Evaluate(const Image* const* images, size_t count) const {
  Activations activations;
  return Forward(images, count, activations);
}

Score Perceptron::Backward(const Image* const* images, size_t count, Gradients& gradients,
                           const std::function<void()>& output_ready) const {
  const size_t units = static_cast<size_t>(parameters_.hidden.outputs);
  Activations activations;
  const Score score = Forward(images, count, activations);

  std::fill(gradients.output.values.begin(), gradients.output.values.end(), 0.0);
  for (size_t n = 0; n < count; ++n) {
    Accumulate(activations.errors.data() + n * kClasses, activations.hidden.data() + n * units,
               gradients.output);
  }
  output_ready();

  std::fill(gradients.hidden.values.begin(), gradients.hidden.values.end(), 0.0);
  std::vector<double> errors(units);
  for (size_t n = 0; n < count; ++n) {
    const double* const hidden = activations.hidden.data() + n * units;
    std::fill(errors.begin(), errors.end(), 0.0);
    for (int c = 0; c < kClasses; ++c) {
      const double error = activations.errors[n * kClasses + static_cast<size_t>(c)];
      const float* row = parameters_.output.row(c);
      for (size_t u = 0; u < units; ++u) errors[u] += error * static_cast<double>(row[u]);
    }
    for (size_t u = 0; u < units; ++u) {
      if (hidden[u] <= 0) errors[u] = 0;
    }
    Accumulate(errors.data(), images[n]->pixels.data(), gradients.hidden);
  }
  return score;
}

}  // namespace digits
