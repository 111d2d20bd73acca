// Trains a small network on handwritten digits, alone or as one of many workers:
//
//     digits                               one process, no coordd
//     coordrun -np 4 -- digits             four workers, the same weights
//     digits compare A B                   how far two files of --dump-weights are apart
#include <chrono>
#include <cstdio>
#include <exception>
#include <optional>
#include <string>

#include "CLI/CLI.hpp"
#include "client/examples/digits/checkpoint.h"
#include "client/examples/digits/dataset.h"
#include "client/examples/digits/trainer.h"
#include "coordd/coordd.hpp"

namespace digits {
namespace {

struct Arguments {
  TrainerOptions trainer;
  std::string coordinator;
  std::string dump_weights;
  bool json = false;
  bool quiet = false;
};

std::optional<coordd::Worker> JoinJob(const std::string& coordinator) {
  if (coordinator.empty()) return std::nullopt;  // alone
  coordd_options_t options = COORDD_OPTIONS_INIT;
  options.coordinator = coordinator.c_str();
  return coordd::Worker::Start(&options);
}

int Train(const Arguments& arguments) {
  const Dataset dataset = LoadDataset();
  Trainer trainer(arguments.trainer, dataset, JoinJob(arguments.coordinator));
  const bool speaks = trainer.rank() == 0;
  if (speaks && !arguments.quiet) {
    std::printf("digits: %d worker%s, %zu images to train on, %zu to test, batch %d, %d hidden\n",
                trainer.size(), trainer.size() == 1 ? "" : "s", dataset.train.size(),
                dataset.test.size(), arguments.trainer.batch, arguments.trainer.hidden);
  }
  const auto began = std::chrono::steady_clock::now();
  trainer.Train([&](const EpochReport& report) {
    if (!speaks || arguments.quiet) return;
    std::printf("epoch %2d  loss %.4f  accuracy %.4f  %.0f images/s\n", report.epoch, report.loss,
                report.accuracy, report.images_per_second);
    std::fflush(stdout);
  });
  const double test_accuracy = trainer.TestAccuracy();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  if (speaks && !arguments.dump_weights.empty()) {
    SaveCheckpoint(arguments.dump_weights, {arguments.trainer.epochs, trainer.parameters(),
                                            Parameters(arguments.trainer.hidden)});
  }
  if (speaks && arguments.json) {
    std::printf("{\"job\":\"digits\",\"workers\":%d,\"test_accuracy\":%.6f,\"seconds\":%.3f}\n",
                trainer.size(), test_accuracy, took.count());
  } else if (speaks) {
    std::printf("test accuracy %.4f after %.1f s\n", test_accuracy, took.count());
  }
  return 0;
}

int Compare(const std::string& a, const std::string& b) {
  const std::optional<Checkpoint> first = LoadCheckpoint(a);
  if (!first) throw std::runtime_error(a + ": no such file");
  const std::optional<Checkpoint> second = LoadCheckpoint(b);
  if (!second) throw std::runtime_error(b + ": no such file");
  std::printf("%.9g\n", MaxWeightDifference(first->parameters, second->parameters));
  return 0;
}

int Main(int argc, char** argv) {
  CLI::App app(
      "Trains a two-layer perceptron on 1,797 handwritten digits. Alone without a coordinator; "
      "under "
      "coordrun, or with --coordinator, as one of the workers of a job.");
  Arguments arguments;
  app.add_option("--epochs", arguments.trainer.epochs, "passes over the training images")
      ->check(CLI::Range(0, 100000))
      ->capture_default_str();
  app.add_option("--batch", arguments.trainer.batch, "images of a step, over all workers")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  app.add_option("--hidden", arguments.trainer.hidden, "hidden units")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  app.add_option("--seed", arguments.trainer.seed,
                 "of the first weights and of the order of images")
      ->capture_default_str();
  app.add_option("--checkpoint", arguments.trainer.checkpoint,
                 "FILE that rank 0 writes after each epoch, and from which it goes on");
  app.add_option("--coordinator", arguments.coordinator, "HOST:PORT of coordd")
      ->envname("COORDD_ADDR");
  app.add_option("--dump-weights", arguments.dump_weights, "FILE for the weights at the end");
  app.add_flag("--json", arguments.json, "a last line for programs");
  app.add_flag("--quiet", arguments.quiet, "no line per epoch");
  std::string first, second;
  CLI::App* compare = app.add_subcommand("compare", "print the largest difference of two weights");
  compare->add_option("A", first, "file of --dump-weights")->required();
  compare->add_option("B", second, "another one")->required();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return compare->parsed() ? Compare(first, second) : Train(arguments);
}

}  // namespace
}  // namespace digits

int main(int argc, char** argv) {
  try {
    return digits::Main(argc, argv);
  } catch (const coordd::Error& error) {
    std::fprintf(stderr, "digits: %s: %s\n", error.code_name(), error.what());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "digits: %s\n", error.what());
  }
  return 1;
}
