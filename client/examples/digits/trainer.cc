#include "client/examples/digits/trainer.h"

#include <algorithm>
#include <chrono>
#include <csignal>
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
  Start();
}

// From nothing, or from the checkpoint. What others than rank 0 begin with does not matter.
void Trainer::Start() {
  Initialise(options_.seed, model_.parameters());
  if (rank_ != 0 || options_.checkpoint.empty()) return;
  const std::optional<Checkpoint> saved = LoadCheckpoint(options_.checkpoint);
  if (!saved) return;
  if (saved->parameters.hidden.outputs != options_.hidden) {
    throw std::runtime_error(options_.checkpoint + ": has " +
                             std::to_string(saved->parameters.hidden.outputs) +
                             " hidden units, expected " + std::to_string(options_.hidden));
  }
  model_.parameters() = saved->parameters;
  velocity_ = saved->velocity;
  progress_.epochs_done = saved->epochs_done;
}

// Into copies first: whoever is interrupted has either all that rank 0 had, or what it had itself.
int64_t Trainer::Sync() {
  if (!worker_) return 0;
  Parameters parameters = model_.parameters();
  Parameters velocity = velocity_;
  std::vector<double> progress = {static_cast<double>(progress_.epochs_done),
                                  static_cast<double>(progress_.image), progress_.score.loss,
                                  static_cast<double>(progress_.score.correct),
                                  static_cast<double>(progress_.score.images)};
  worker_->Broadcast("progress", coordd::View(progress), /*root=*/0);
  worker_->Broadcast("hidden", coordd::View(parameters.hidden.values), 0);
  worker_->Broadcast("output", coordd::View(parameters.output.values), 0);
  worker_->Broadcast("hidden.velocity", coordd::View(velocity.hidden.values), 0);
  worker_->Broadcast("output.velocity", coordd::View(velocity.output.values), 0);
  const int64_t steps = steps_done();
  model_.parameters() = std::move(parameters);
  velocity_ = std::move(velocity);
  progress_ = {static_cast<int>(progress[0]),
               static_cast<int64_t>(progress[1]),
               {progress[2], static_cast<int64_t>(progress[3]), static_cast<int64_t>(progress[4])}};
  std::vector<int64_t> lost = {std::max<int64_t>(0, steps - steps_done())};
  worker_->Allreduce("steps.lost", coordd::View(lost), coordd::Op::kMax);
  return lost[0];
}

coordd::Work Trainer::SumOverWorkers(const std::string& name, Layer<double>& gradient) {
  return worker_->AllreduceAsync(name, coordd::View(gradient.values), coordd::Op::kSum);
}

Score Trainer::SumOverWorkers(const std::string& name, const Score& score) {
  if (!worker_) return score;
  LeaveIfAsked();
  const bool leaves = options_.elastic && worker_->drain_seconds() >= 0;
  std::vector<double> sums = {score.loss, static_cast<double>(score.correct),
                              static_cast<double>(score.images),
                              options_.elastic ? worker_->newcomers() + leaves : 0.0};
  worker_->Allreduce(name, coordd::View(sums), coordd::Op::kSum);
  members_change_ = sums[3] > 0;
  return {sums[0], static_cast<int64_t>(sums[1]), static_cast<int64_t>(sums[2])};
}

int64_t Trainer::steps_done() const {
  const int64_t count = static_cast<int64_t>(dataset_.train.size());
  const auto steps = [this](int64_t images) {
    return (images + options_.batch - 1) / options_.batch;
  };
  return progress_.epochs_done * steps(count) + steps(progress_.image);
}

// One step, on the images up to `end`, of which this worker takes its part. Nothing of it remains
// when it throws.
void Trainer::Step(const std::vector<int>& order, int64_t end) {
  if (steps_done() == options_.crash_at) std::raise(SIGKILL);
  const int64_t begin = progress_.image;
  const Part part = PartOf(end - begin, rank_, size_);
  std::vector<const Image*> images;
  for (int64_t i = begin + part.begin; i < begin + part.end; ++i) {
    images.push_back(&dataset_.train[static_cast<size_t>(order[static_cast<size_t>(i)])]);
  }

  // The output layer's gradient travels while the hidden layer's is computed.
  coordd::Work output_sum, hidden_sum;
  Score score = model_.Backward(images.data(), images.size(), gradients_, [&] {
    if (worker_) output_sum = SumOverWorkers("output.gradient", gradients_.output);
  });
  if (worker_) {
    hidden_sum = SumOverWorkers("hidden.gradient", gradients_.hidden);
    output_sum.Wait();
    hidden_sum.Wait();
  }
  if (options_.elastic) score = SumOverWorkers("score", score);
  // Parts may be uneven, so that the sum over all images is divided here, and not averaged by rank.
  Parameters& parameters = model_.parameters();
  Apply(gradients_.output, end - begin, velocity_.output, parameters.output);
  Apply(gradients_.hidden, end - begin, velocity_.hidden, parameters.hidden);
  progress_.image = end;
  progress_.score.loss += score.loss;
  progress_.score.correct += score.correct;
  progress_.score.images += score.images;
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

std::optional<double> Trainer::TrainToEnd(const Reports& reports) {
  const int64_t count = static_cast<int64_t>(dataset_.train.size());
  while (progress_.epochs_done < options_.epochs) {
    const auto began = std::chrono::steady_clock::now();
    const std::vector<int> order =
        ShuffledOrder(static_cast<int>(count), options_.seed, progress_.epochs_done);
    while (progress_.image < count) {
      Step(order, std::min<int64_t>(progress_.image + options_.batch, count));
      if (members_change_ && !ChangeMembers(reports)) return std::nullopt;
    }
    const Score sum = options_.elastic ? progress_.score : SumOverWorkers("epoch", progress_.score);
    progress_ = {progress_.epochs_done + 1, 0, {}};
    if (rank_ == 0 && !options_.checkpoint.empty()) {
      SaveCheckpoint(options_.checkpoint, {progress_.epochs_done, model_.parameters(), velocity_});
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    const double images = static_cast<double>(sum.images);
    reports.epoch({progress_.epochs_done, sum.loss / images,
                   static_cast<double>(sum.correct) / images,
                   images / std::max(took.count(), 1e-9)});
  }
  return TestAccuracy();
}

std::optional<double> Trainer::Train(const Reports& reports) {
  bool synced = false;
  for (;;) {
    try {
      if (!std::exchange(synced, true)) Sync();
      return TrainToEnd(reports);
    } catch (const coordd::Error& error) {
      if (!options_.elastic || error.code() != COORDD_GENERATION_CHANGED) throw;
      Recover(error, reports);
    }
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
