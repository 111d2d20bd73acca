#include <algorithm>
#include <cmath>

#include "client/examples/digits/dataset.h"
#include "client/examples/digits/perceptron.h"
#include "gtest/gtest.h"

namespace digits {
namespace {

constexpr int kHidden = 7;

class DigitsPerceptron : public ::testing::Test {
 protected:
  DigitsPerceptron() : data_(LoadDataset()), model_(kHidden), gradients_(kHidden) {
    Initialise(/*seed=*/3, model_.parameters());
    for (int i = 0; i < 12; ++i) images_.push_back(&data_.train[static_cast<size_t>(i)]);
  }

  // Moves one weight by about +-`step` and returns the slope of the loss between.
  double NumericalSlope(float& weight) {
    const float before = weight;
    constexpr float kStep = 1e-3f;
    weight = before + kStep;
    const double above = weight, loss_above = model_.Evaluate(images_.data(), images_.size()).loss;
    weight = before - kStep;
    const double below = weight, loss_below = model_.Evaluate(images_.data(), images_.size()).loss;
    weight = before;
    return (loss_above - loss_below) / (above - below);
  }

  void ExpectSlopes(Layer<float>& weights, const Layer<double>& gradient) {
    for (size_t i = 0; i < weights.values.size(); i += 5) {
      const double slope = NumericalSlope(weights.values[i]);
      EXPECT_NEAR(gradient.values[i], slope, 1e-4 * std::max(1.0, std::abs(slope))) << i;
    }
  }

  Dataset data_;
  Perceptron model_;
  Gradients gradients_;
  std::vector<const Image*> images_;
};

TEST_F(DigitsPerceptron, GradientsAreTheSlopesOfTheLoss) {
  model_.Backward(images_.data(), images_.size(), gradients_, [] {});
  ExpectSlopes(model_.parameters().output, gradients_.output);
  ExpectSlopes(model_.parameters().hidden, gradients_.hidden);
}

TEST_F(DigitsPerceptron, GradientsOfPartsAddUpToThatOfTheWhole) {
  model_.Backward(images_.data(), images_.size(), gradients_, [] {});
  Gradients part(kHidden);
  std::vector<double> sum(gradients_.hidden.values.size());
  for (int rank = 0; rank < 5; ++rank) {
    const Part p = PartOf(static_cast<int64_t>(images_.size()), rank, 5);
    model_.Backward(images_.data() + p.begin, static_cast<size_t>(p.end - p.begin), part, [] {});
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += part.hidden.values[i];
  }
  for (size_t i = 0; i < sum.size(); ++i) {
    EXPECT_NEAR(sum[i], gradients_.hidden.values[i], 1e-12 * (1 + std::abs(sum[i])));
  }
}

TEST_F(DigitsPerceptron, AnEmptyPartHasAZeroGradientAndNoScore) {
  gradients_.output.values.assign(gradients_.output.values.size(), 5.0);
  const Score score = model_.Backward(nullptr, 0, gradients_, [] {});
  EXPECT_EQ(score.images, 0);
  EXPECT_EQ(score.loss, 0);
  for (const double g : gradients_.output.values) EXPECT_EQ(g, 0);
  for (const double g : gradients_.hidden.values) EXPECT_EQ(g, 0);
}

TEST_F(DigitsPerceptron, TellsWhenTheOutputGradientIsThereAndLeavesItAloneAfterwards) {
  Layer<double> seen;
  int calls = 0;
  model_.Backward(images_.data(), images_.size(), gradients_, [&] {
    ++calls;
    seen = gradients_.output;
    gradients_.output.values.assign(seen.values.size(), -1.0);  // as a sum in place would
  });
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(gradients_.output.values, std::vector<double>(seen.values.size(), -1.0));
  Gradients undisturbed(kHidden);
  model_.Backward(images_.data(), images_.size(), undisturbed, [] {});
  EXPECT_EQ(seen.values, undisturbed.output.values);
  EXPECT_EQ(gradients_.hidden.values, undisturbed.hidden.values);
}

TEST_F(DigitsPerceptron, UntrainedItGuesses) {
  const Score score = model_.Evaluate(images_.data(), images_.size());
  EXPECT_EQ(score.images, 12);
  EXPECT_NEAR(score.loss / 12, std::log(10.0), 1.0);
}

TEST_F(DigitsPerceptron, TheSameSeedGivesTheSameWeights) {
  Parameters again(kHidden), other(kHidden);
  Initialise(3, again);
  Initialise(4, other);
  EXPECT_EQ(again.hidden.values, model_.parameters().hidden.values);
  EXPECT_NE(other.hidden.values, model_.parameters().hidden.values);
}

}  // namespace
}  // namespace digits
