#include "client/examples/digits/trainer.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <stdexcept>
#include <utility>

namespace digits {

Trainer::Trainer(const TrainerOptions& options, const Dataset& dataset,
                 std::optional<coordd::Worker> worker)
    : options_(options),
      dataset_(dataset),
      rank_(worker ? worker->rank() : 0),
      size_(worker ? worker->size() : 1),
      model_(options.hidden),
      gradients_(options.hidden),
      velocity_(options.hidden),
      worker_(std::move(worker)) {
  StartFromRank0();
}

// Rank 0 initialises, or reads the checkpoint; everyone gets its state.
void Trainer::StartFromRank0() {
  if (rank_ == 0) {
    Initialise(options_.seed, model_.parameters());
    std::optional<Checkpoint> saved;
    if (!options_.checkpoint.empty()) saved = LoadCheckpoint(options_.checkpoint);
    if (saved && saved->parameters.hidden.outputs != options_.hidden) {
      throw std::runtime_error(options_.checkpoint + ": has " +
                               std::to_string(saved->parameters.hidden.outputs) +
                               " hidden units, expected " + std::to_string(options_.hidden));
    }
    if (saved) {
      model_.parameters() = saved->parameters;
      velocity_ = saved->velocity;
      epochs_done_ = saved->epochs_done;
    }
  }
  if (!worker_) return;
  std::vector<int32_t> epochs_done = {epochs_done_};
  worker_->Broadcast("epochs_done", coordd::View(epochs_done), /*root=*/0);
  epochs_done_ = epochs_done[0];
  worker_->Broadcast("hidden", coordd::View(model_.parameters().hidden.values), 0);
  worker_->Broadcast("output", coordd::View(model_.parameters().output.values), 0);
  worker_->Broadcast("hidden.velocity", coordd::View(velocity_.hidden.values), 0);
  worker_->Broadcast("output.velocity", coordd::View(velocity_.output.values), 0);
}

coordd::Work Trainer::SumOverWorkers(const std::string& name, Layer<double>& gradient) {
  return worker_->AllreduceAsync(name, coordd::View(gradient.values), coordd::Op::kSum);
}

Score Trainer::SumOverWorkers(const std::string& name, const Score& score) {
  if (!worker_) return score;
  std::vector<double> sums = {score.loss, static_cast<double>(score.correct),
                              static_cast<double>(score.images)};
  worker_->Allreduce(name, coordd::View(sums), coordd::Op::kSum);
  return {sums[0], static_cast<int64_t>(sums[1]), static_cast<int64_t>(sums[2])};
}

// One step on images order[begin, end), of which this worker takes its part.
Score Trainer::Step(const std::vector<int>& order, int64_t begin, int64_t end) {
  const Part part = PartOf(end - begin, rank_, size_);
  std::vector<const Image*> images;
  for (int64_t i = begin + part.begin; i < begin + part.end; ++i) {
    images.push_back(&dataset_.train[static_cast<size_t>(order[static_cast<size_t>(i)])]);
  }

  // The output layer's gradient travels while the hidden layer's is computed.
  coordd::Work output_sum, hidden_sum;
  const Score score = model_.Backward(images.data(), images.size(), gradients_, [&] {
    if (worker_) output_sum = SumOverWorkers("output.gradient", gradients_.output);
  });
  if (worker_) {
    hidden_sum = SumOverWorkers("hidden.gradient", gradients_.hidden);
    output_sum.Wait();
    hidden_sum.Wait();
  }
  // Parts may be uneven, so that the sum over all images is divided here, and not averaged by rank.
  Parameters& parameters = model_.parameters();
  Apply(gradients_.output, end - begin, velocity_.output, parameters.output);
  Apply(gradients_.hidden, end - begin, velocity_.hidden, parameters.hidden);
  return score;
}

// Stochastic gradient descent with momentum.
void Trainer::Apply(const Layer<double>& gradient, int64_t images, Layer<float>& velocity,
                    Layer<float>& weights) const {
  for (size_t i = 0; i < weights.values.size(); ++i) {
    velocity.values[i] = static_cast<float>(options_.momentum * velocity.values[i] +
                                            gradient.values[i] / static_cast<double>(images));
    weights.values[i] =
        static_cast<float>(weights.values[i] - options_.learning_rate * velocity.values[i]);
  }
}

void Trainer::Train(const std::function<void(const EpochReport&)>& report) {
  const int64_t count = static_cast<int64_t>(dataset_.train.size());
  while (epochs_done_ < options_.epochs) {
    const auto began = std::chrono::steady_clock::now();
    const std::vector<int> order =
        ShuffledOrder(static_cast<int>(count), options_.seed, epochs_done_);
    Score sum;
    for (int64_t begin = 0; begin < count; begin += options_.batch) {
      const Score score = Step(order, begin, std::min<int64_t>(begin + options_.batch, count));
      sum.loss += score.loss;
      sum.correct += score.correct;
      sum.images += score.images;
    }
    sum = SumOverWorkers("epoch", sum);
    ++epochs_done_;
    if (rank_ == 0 && !options_.checkpoint.empty()) {
      SaveCheckpoint(options_.checkpoint, {epochs_done_, model_.parameters(), velocity_});
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    const double images = static_cast<double>(sum.images);
    report({epochs_done_, sum.loss / images, static_cast<double>(sum.correct) / images,
            images / std::max(took.count(), 1e-9)});
  }
}

double Trainer::TestAccuracy() {
  const Part part = PartOf(static_cast<int64_t>(dataset_.test.size()), rank_, size_);
  std::vector<const Image*> images;
  for (int64_t i = part.begin; i < part.end; ++i) {
    images.push_back(&dataset_.test[static_cast<size_t>(i)]);
  }
  const Score score = SumOverWorkers("test", model_.Evaluate(images.data(), images.size()));
  return static_cast<double>(score.correct) / static_cast<double>(score.images);
}

}  // namespace digits
