// A two-layer perceptron: 64 pixels, one hidden layer of rectified linear units, 10 classes by
// softmax. Written for reading, without a matrix library.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "client/examples/digits/dataset.h"

namespace digits {

// One dense layer: outputs x inputs weights, row by row, then one bias for each output. The same
// structure holds values, gradients and velocities, so that each layer travels as one tensor.
template <typename T>
struct Layer {
  int inputs = 0, outputs = 0;
  std::vector<T> values;

  Layer() = default;
  Layer(int in, int out) : inputs(in), outputs(out), values(static_cast<size_t>(out * (in + 1))) {}
  T* row(int output) { return values.data() + output * inputs; }
  const T* row(int output) const { return values.data() + output * inputs; }
  T& bias(int output) { return values[static_cast<size_t>(outputs * inputs + output)]; }
  T bias(int output) const { return values[static_cast<size_t>(outputs * inputs + output)]; }
};

template <typename T>
struct Layers {
  Layer<T> hidden, output;

  explicit Layers(int hidden_units)
      : hidden(kPixels, hidden_units), output(hidden_units, kClasses) {}
};

// Weights are float32, as trained networks are kept. Sums over images (gradients, losses) are
// float64, so that the way in which images are dealt out to workers hardly shows in the result.
using Parameters = Layers<float>;
using Gradients = Layers<double>;

// He initialisation from `seed`: normal with variance 2 / inputs; biases are zero.
void Initialise(uint64_t seed, Parameters& parameters);

struct Score {
  double loss = 0;      // cross entropy, summed over images
  int64_t correct = 0;  // images whose most probable class is the right one
  int64_t images = 0;
};

class Perceptron {
 public:
  explicit Perceptron(int hidden_units) : parameters_(hidden_units) {}

  Parameters& parameters() { return parameters_; }
  const Parameters& parameters() const { return parameters_; }

  Score Evaluate(const Image* const* images, size_t count) const;

  // Sums the gradients of the cross entropy over `images` into `gradients`, from the last layer to
  // the first. Calls `output_ready` as soon as the gradient of the output layer is there, while
  // that of the hidden layer is still to be computed: the moment to send it.
  Score Backward(const Image* const* images, size_t count, Gradients& gradients,
                 const std::function<void()>& output_ready) const;

 private:
  struct Activations {
    std::vector<double> hidden;  // count x hidden units, after rectification
    std::vector<double> errors;  // count x classes: probability minus truth
  };
  Score Forward(const Image* const* images, size_t count, Activations& activations) const;

  Parameters parameters_;
};

}  // namespace digits
