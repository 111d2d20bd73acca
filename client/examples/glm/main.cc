// Ridge regression, a linear support vector machine, or logistic regression, on rows that are
// spread over the workers:
//
//     glm svm                                          one process, no coordd
//     coordrun -np 4 -- glm logistic --gap 1e-5        four workers, a quarter of the rows each
//
// Every round the workers go through their rows once and add up how they have changed the weights.
// The duality gap says how far these are from the best ones, whatever has happened on the way.
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "client/examples/glm/data.h"
#include "client/examples/glm/local_solver.h"
#include "client/examples/glm/loss.h"
#include "coordd/coordd.hpp"

namespace glm {
namespace {

struct Arguments {
  std::string loss = "ridge";
  DataOptions data;
  double lambda = 1e-4;
  double gap = 1e-4;
  int rounds_max = 1000;
  std::string coordinator;
  std::string save;
};

// The sum over all workers; alone: nothing changes.
void Sum(std::optional<coordd::Worker>& worker, const std::string& name,
         std::vector<double>& values) {
  if (worker) worker->Allreduce(name, coordd::View(values), coordd::Op::kSum);
}

struct Certificate {
  double primal = 0, dual = 0;
  double gap() const { return primal - dual; }
};

Certificate Certify(std::optional<coordd::Worker>& worker, const LocalSolver& solver,
                    const std::vector<double>& weights, const Arguments& arguments) {
  const LocalSolver::Sums own = solver.SumsAt(weights);
  std::vector<double> sums = {own.loss, own.dual};
  Sum(worker, "sums", sums);
  double squares = 0;
  for (double weight : weights) squares += weight * weight;
  const double rows = static_cast<double>(arguments.data.rows);
  const double penalty = arguments.lambda / 2 * squares;
  return {sums[0] / rows + penalty, sums[1] / rows - penalty};
}

void Save(const std::string& path, const std::vector<double>& weights) {
  std::ofstream out(path);
  out.precision(17);
  for (double weight : weights) out << weight << "\n";
}

int Solve(Arguments arguments) {
  std::optional<coordd::Worker> worker;
  if (!arguments.coordinator.empty()) {
    coordd_options_t options = COORDD_OPTIONS_INIT;
    options.coordinator = arguments.coordinator.c_str();
    worker = coordd::Worker::Start(&options);
  }
  const int rank = worker ? worker->rank() : 0;
  const int size = worker ? worker->size() : 1;
  const Loss loss = *LossNamed(arguments.loss);
  arguments.data.is_regression = loss == Loss::kRidge;
  const int64_t rows = arguments.data.rows;
  const Data data =
      MakeData(arguments.data, PartBegin(rows, rank, size), PartBegin(rows, rank + 1, size));
  LocalSolver solver(loss, data, rows, arguments.lambda, size,
                     arguments.data.seed + static_cast<uint64_t>(rank));
  std::vector<double> weights(static_cast<size_t>(data.features));
  const auto begin = std::chrono::steady_clock::now();
  Certificate certificate;
  int round = 0;
  do {
    std::vector<double> change = solver.Pass(weights);
    Sum(worker, "change", change);
    for (size_t j = 0; j < weights.size(); ++j) weights[j] += change[j];
    certificate = Certify(worker, solver, weights, arguments);
    ++round;
    if (rank == 0) {
      std::printf("round %d: objective %.9f, bound %.9f, gap %.3e\n", round, certificate.primal,
                  certificate.dual, certificate.gap());
    }
  } while (certificate.gap() > arguments.gap && round < arguments.rounds_max);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  const bool is_good = certificate.gap() <= arguments.gap;
  if (rank == 0) {
    std::printf(
        "certificate: %s, %lld rows, %d worker%s: no weights have an objective that is smaller by "
        "more than %.3e (%d rounds, %.3f s)\n",
        arguments.loss.c_str(), static_cast<long long>(rows), size, size == 1 ? "" : "s",
        certificate.gap(), round, took.count());
    if (!arguments.save.empty()) Save(arguments.save, weights);
  }
  return is_good ? 0 : 1;
}

int Main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Generalized linear models on coordd's collectives", "glm");
  app.add_option("loss", arguments.loss, "ridge, svm or logistic")
      ->check(CLI::IsMember({"ridge", "svm", "logistic"}))
      ->required();
  app.add_option("--rows", arguments.data.rows, "of all workers")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
  app.add_option("--features", arguments.data.features, "of a row")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--seed", arguments.data.seed, "of the data")->capture_default_str();
  app.add_option("--lambda", arguments.lambda, "weight of |w|^2 / 2")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--gap", arguments.gap, "until the duality gap is this")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--rounds", arguments.rounds_max, "at most; status 1 where the gap is larger then")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
  app.add_option("--save", arguments.save, "where rank 0 writes the weights, one a line");
  app.add_option("--coordinator", arguments.coordinator, "coordd; without one: alone")
      ->envname("COORDD_ADDR");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return Solve(arguments);
}

}  // namespace
}  // namespace glm

int main(int argc, char** argv) {
  try {
    return glm::Main(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "glm: %s\n", error.what());
    return 1;
  }
}
