// Data-parallel training, as people write it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "client/examples/digits/checkpoint.h"
#include "client/examples/digits/dataset.h"
#include "client/examples/digits/perceptron.h"
#include "coordd/coordd.hpp"

namespace digits {

struct TrainerOptions {
  int epochs = 20;
  int batch = 64;  // images of a step, over all workers: the result does not depend on their number
  int hidden = 64;
  uint64_t seed = 1;
  double learning_rate = 0.1;
  double momentum = 0.9;
  std::string checkpoint;  // file; empty: none. If it is there, training goes on from it
};

struct EpochReport {
  int epoch = 0;                  // from 1
  double loss = 0, accuracy = 0;  // means over the training images, as they were met
  double images_per_second = 0;   // of all workers together
};

// One worker's training loop. Without a `worker` the process trains alone. Not thread-safe.
class Trainer {
 public:
  Trainer(const TrainerOptions& options, const Dataset& dataset,
          std::optional<coordd::Worker> worker);

  // Trains up to options.epochs; `report` is called on every worker after each epoch. Throws
  // coordd::Error when the job ends early.
  void Train(const std::function<void(const EpochReport&)>& report);

  double TestAccuracy();

  int rank() const { return rank_; }
  int size() const { return size_; }
  const Parameters& parameters() const { return model_.parameters(); }

 private:
  void StartFromRank0();
  Score Step(const std::vector<int>& order, int64_t begin, int64_t end);
  void Apply(const Layer<double>& gradient, int64_t images, Layer<float>& velocity,
             Layer<float>& weights) const;
  coordd::Work SumOverWorkers(const std::string& name, Layer<double>& gradient);
  Score SumOverWorkers(const std::string& name, const Score& score);

  const TrainerOptions options_;
  const Dataset& dataset_;
  const int rank_;
  const int size_;
  Perceptron model_;
  Gradients gradients_;
  Parameters velocity_;
  int epochs_done_ = 0;
  // Last, so that it ends first: the buffers above are coordd's while a sum is under way, also when
  // an exception leaves Train.
  std::optional<coordd::Worker> worker_;
};

}  // namespace digits
