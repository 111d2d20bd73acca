// Data-parallel training, as people write it.
#pragma once

#include <chrono>
#include <csignal>
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
  // Goes on with the others when a worker is lost, and with those who come. The worker was started
  // with on_failure "raise".
  bool elastic = false;
  // When elastic: not 0 once this process has to end: it leaves at the next step. null: never.
  const volatile std::sig_atomic_t* must_end = nullptr;
  int64_t crash_at = -1;  // kills itself before this step, counted over all epochs; -1: never
};

struct EpochReport {
  int epoch = 0;                  // from 1
  double loss = 0, accuracy = 0;  // means over the training images, as they were met
  double images_per_second = 0;   // of all workers together
};

// A change of members, as this worker saw it.
struct ChangeReport {
  std::string reason;  // of the end of the last generation; empty: others had come
  int64_t generation = 0;
  int size = 0;            // workers from now on
  double seconds = 0;      // from the failed call, or from the agreement, to where it goes on
  int epoch = 0;           // from 1, and
  int64_t image = 0;       // from 0: where that is
  int64_t steps_lost = 0;  // made by a worker, and not by rank 0: they are made again
};

// One worker's training loop. Without a `worker` the process trains alone. Not thread-safe.
class Trainer {
 public:
  Trainer(const TrainerOptions& options, const Dataset& dataset,
          std::optional<coordd::Worker> worker);

  // Called on every worker after each epoch, and after each change of members.
  struct Reports {
    std::function<void(const EpochReport&)> epoch;
    std::function<void(const ChangeReport&)> change;
  };
  // Trains up to options.epochs; returns the accuracy on the test images. Throws coordd::Error when
  // the job ends early. Nothing: this worker was asked to leave, and the others go on.
  std::optional<double> Train(const Reports& reports);

  int rank() const { return rank_; }
  int size() const { return size_; }
  const Parameters& parameters() const { return model_.parameters(); }

 private:
  // How far training is, besides the weights.
  struct Progress {
    int epochs_done = 0;
    int64_t image = 0;  // images of this epoch that have been learned from
    Score score;        // of these: of this worker, when elastic of all
  };

  void Start();
  // Gives all workers what rank 0 has. Returns how many steps more one of them had made.
  int64_t Sync();
  std::optional<double> TrainToEnd(const Reports& reports);
  void Step(const std::vector<int>& order, int64_t end);
  void Apply(const Layer<double>& gradient, int64_t images, Layer<float>& velocity,
             Layer<float>& weights) const;
  int64_t steps_done() const;
  coordd::Work SumOverWorkers(const std::string& name, Layer<double>& gradient);
  Score SumOverWorkers(const std::string& name, const Score& score);
  double TestAccuracy();

  // elastic.cc: what it takes to go on with other members.
  void Recover(const coordd::Error& lost, const Reports& reports);
  // Whether this worker is among those who go on.
  bool ChangeMembers(const Reports& reports);
  void LeaveIfAsked();
  // Waits for the next generation, and begins it with what rank 0 has.
  void GoOn(const std::string& reason, coordd::Expected<coordd_placement_t> next,
            const Reports& reports);

  const TrainerOptions options_;
  const Dataset& dataset_;
  int rank_ = 0, size_ = 1;
  Perceptron model_;
  Gradients gradients_;
  Parameters velocity_;
  Progress progress_;
  // Others wait to become members, or some are to leave: equal on all workers after a step.
  bool members_change_ = false;
  bool asked_to_leave_ = false;  // by this process itself
  std::chrono::steady_clock::time_point interrupted_at_;
  // Last, so that it ends first: the buffers above are coordd's while a sum is under way, also when
  // an exception leaves Train.
  std::optional<coordd::Worker> worker_;
};

}  // namespace digits
