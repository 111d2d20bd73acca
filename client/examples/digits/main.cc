// Trains a small network on handwritten digits, alone or as one of many workers:
//
//     digits                               one process, no coordd
//     coordrun -np 4 -- digits             four workers, the same weights
//     coordrun -np 4 --min-np 1 --max-restarts 4 -- digits --elastic
//                                          kill -9 any of them: the same weights
//     digits compare A B                   how far two files of --dump-weights are apart
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>

#include "CLI/CLI.hpp"
#include "client/examples/digits/checkpoint.h"
#include "client/examples/digits/dataset.h"
#include "client/examples/digits/trainer.h"
#include "coordd/coordd.hpp"

namespace digits {
namespace {

// All changes of members that this worker saw.
struct Changes {
  int64_t generation = 0;  // the last
  int64_t steps_lost = 0;
  double worst_ms = 0;
};

struct Arguments {
  TrainerOptions trainer;
  std::string coordinator;
  std::string dump_weights;
  int report_every = 1;
  bool json = false;
  bool quiet = false;
  std::string crash;  // RANK:STEP
  int started_as = -1;
};

std::optional<coordd::Worker> JoinJob(const Arguments& arguments) {
  if (arguments.coordinator.empty()) return std::nullopt;  // alone
  coordd_options_t options = COORDD_OPTIONS_INIT;
  options.coordinator = arguments.coordinator.c_str();
  if (arguments.trainer.elastic) options.on_failure = "raise";
  return coordd::Worker::Start(&options);
}

void PrintChange(const ChangeReport& change) {
  if (!change.reason.empty()) std::printf("%s\n", change.reason.c_str());
  std::printf(
      "generation %lld: %d worker%s go on after %.0f ms, at epoch %d, image %lld; steps lost: "
      "%lld\n",
      static_cast<long long>(change.generation), change.size, change.size == 1 ? "" : "s",
      change.seconds * 1e3, change.epoch, static_cast<long long>(change.image),
      static_cast<long long>(change.steps_lost));
  std::fflush(stdout);
}

// The rank is that of the job's start, of which the launcher tells: who has moved up is not meant,
// and who was started again comes behind the step.
int64_t CrashAt(const Arguments& arguments) {
  if (arguments.crash.empty()) return -1;
  int rank = 0;
  long long step = 0;
  char rest = 0;
  if (std::sscanf(arguments.crash.c_str(), "%d:%lld%c", &rank, &step, &rest) != 2 || rank < 0 ||
      step < 0)
    throw std::runtime_error("--crash is " + arguments.crash + ": expected RANK:STEP");
  return rank == arguments.started_as ? step : -1;
}

volatile std::sig_atomic_t must_end = 0;

// From now on the first SIGTERM lets this worker leave at the next step; the second ends it.
void LeaveOnSigterm() {
  struct sigaction action = {};
  action.sa_handler = [](int) { must_end = 1; };
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  sigaction(SIGTERM, &action, nullptr);
}

int Train(Arguments arguments) {
  arguments.trainer.crash_at = CrashAt(arguments);
  const Dataset dataset = LoadDataset();
  arguments.trainer.must_end = &must_end;
  Trainer trainer(arguments.trainer, dataset, JoinJob(arguments));
  if (arguments.trainer.elastic) LeaveOnSigterm();
  // Others may be rank 0 later.
  const auto speaks = [&] { return trainer.rank() == 0; };
  if (speaks() && !arguments.quiet) {
    std::printf("digits: %d worker%s, %zu images to train on, %zu to test, batch %d, %d hidden\n",
                trainer.size(), trainer.size() == 1 ? "" : "s", dataset.train.size(),
                dataset.test.size(), arguments.trainer.batch, arguments.trainer.hidden);
  }
  const auto began = std::chrono::steady_clock::now();
  Trainer::Reports reports;
  reports.epoch = [&](const EpochReport& report) {
    if (!speaks() || arguments.quiet || report.epoch % arguments.report_every != 0) return;
    std::printf("epoch %2d  loss %.4f  accuracy %.4f  %.0f images/s\n", report.epoch, report.loss,
                report.accuracy, report.images_per_second);
    std::fflush(stdout);
  };
  Changes changes;
  reports.change = [&](const ChangeReport& change) {
    changes.generation = change.generation;
    changes.steps_lost += change.steps_lost;
    changes.worst_ms = std::max(changes.worst_ms, change.seconds * 1e3);
    if (speaks() && !arguments.quiet) PrintChange(change);
  };
  const std::optional<double> trained = trainer.Train(reports);
  if (!trained) {
    std::printf("digits: rank %d has left, as it was asked to\n", trainer.rank());
    return 0;
  }
  const double test_accuracy = *trained;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  if (speaks() && !arguments.dump_weights.empty()) {
    SaveCheckpoint(arguments.dump_weights, {arguments.trainer.epochs, trainer.parameters(),
                                            Parameters(arguments.trainer.hidden)});
  }
  if (speaks() && arguments.json && arguments.trainer.elastic) {
    std::printf(
        "{\"job\":\"digits-elastic\",\"workers\":%d,\"generation\":%lld,\"steps_lost\":%lld,"
        "\"worst_ms\":%.1f,\"test_accuracy\":%.6f,\"seconds\":%.3f}\n",
        trainer.size(), static_cast<long long>(changes.generation),
        static_cast<long long>(changes.steps_lost), changes.worst_ms, test_accuracy, took.count());
  } else if (speaks() && arguments.json) {
    std::printf("{\"job\":\"digits\",\"workers\":%d,\"test_accuracy\":%.6f,\"seconds\":%.3f}\n",
                trainer.size(), test_accuracy, took.count());
  } else if (speaks()) {
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
  app.add_flag("--elastic", arguments.trainer.elastic,
               "go on with the others when a worker is lost, and with those who come "
               "(coordrun --min-np, --max-restarts)");
  app.add_option("--crash", arguments.crash,
                 "RANK:STEP: who was started as this rank kills itself before this step");
  app.add_option("--started-as", arguments.started_as)->envname("COORDD_RANK")->group("");
  app.add_option("--report-every", arguments.report_every, "epochs between two lines")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
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
