#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "client/examples/glm/data.h"
#include "client/examples/glm/local_solver.h"
#include "client/examples/glm/loss.h"

namespace glm {
namespace {

constexpr Loss kLosses[] = {Loss::kRidge, Loss::kSvm, Loss::kLogistic};

TEST(GlmData, IsTheSameHoweverManyWorkersShareIt) {
  const DataOptions options{.rows = 10, .features = 3};
  const Data whole = MakeData(options, 0, options.rows);
  for (int rank = 0; rank < 4; ++rank) {
    const int64_t begin = PartBegin(options.rows, rank, 4);
    const Data part = MakeData(options, begin, PartBegin(options.rows, rank + 1, 4));
    for (int64_t i = 0; i < part.rows(); ++i) {
      EXPECT_EQ(part.labels[static_cast<size_t>(i)], whole.labels[static_cast<size_t>(begin + i)]);
      for (int64_t j = 0; j < 3; ++j) EXPECT_EQ(part.row(i)[j], whole.row(begin + i)[j]);
    }
  }
  EXPECT_EQ(PartBegin(options.rows, 4, 4), options.rows);
}

// What makes the gap a certificate: loss(z) + conjugate(-a) >= -a z, for all z and a.
TEST(GlmLoss, IsNeverLessThanItsDualSays) {
  for (Loss loss : kLosses) {
    for (double y : {-1.0, 1.0}) {
      for (double b = 0; b <= 1; b += 0.125) {
        for (double z = -4; z <= 4; z += 0.25) {
          EXPECT_GE(Value(loss, z, y) - DualValue(loss, b * y, y) + b * y * z, -1e-12)
              << static_cast<int>(loss) << " y " << y << " b " << b << " z " << z;
        }
      }
    }
  }
}

TEST(GlmLoss, AStepIsTheBestForOneRow) {
  const double y = -1;
  for (Loss loss : kLosses) {
    for (double a0 : {0.0, -0.25, -0.9}) {
      for (double z : {-3.0, 0.1, 2.0}) {
        for (double q : {0.01, 1.0, 50.0}) {
          const auto dual = [&](double a) {
            return DualValue(loss, a, y) - z * (a - a0) - q / 2 * (a - a0) * (a - a0);
          };
          const double best = Step(loss, a0, z, y, q);
          const bool is_free = loss == Loss::kRidge;
          for (double d : {-1e-3, -1e-5, 1e-5, 1e-3}) {
            const double other = best + d;
            if (!is_free && (other * y < 0 || other * y > 1)) continue;
            EXPECT_LE(dual(other), dual(best) + 1e-9) << static_cast<int>(loss);
          }
        }
      }
    }
  }
}

TEST(GlmSolver, WorkersTogetherCloseTheGap) {
  constexpr double kLambda = 1e-2;
  for (Loss loss : kLosses) {
    const DataOptions options{.rows = 500, .features = 10, .is_regression = loss == Loss::kRidge};
    for (int workers : {1, 3}) {
      std::vector<Data> data;
      std::vector<std::unique_ptr<LocalSolver>> solvers;
      for (int rank = 0; rank < workers; ++rank) {
        data.push_back(MakeData(options, PartBegin(options.rows, rank, workers),
                                PartBegin(options.rows, rank + 1, workers)));
      }
      for (int rank = 0; rank < workers; ++rank) {
        solvers.push_back(std::make_unique<LocalSolver>(loss, data[static_cast<size_t>(rank)],
                                                        options.rows, kLambda, workers, rank));
      }
      std::vector<double> weights(10);
      double gap = 1;
      for (int round = 0; round < 300 && gap > 1e-5; ++round) {
        std::vector<double> changes(10);
        for (auto& solver : solvers) {
          const std::vector<double> change = solver->Pass(weights);
          for (size_t j = 0; j < changes.size(); ++j) changes[j] += change[j];
        }
        double squares = 0;
        for (size_t j = 0; j < weights.size(); ++j) {
          weights[j] += changes[j];
          squares += weights[j] * weights[j];
        }
        gap = kLambda * squares;
        for (auto& solver : solvers) {
          const LocalSolver::Sums sums = solver->SumsAt(weights);
          gap += (sums.loss - sums.dual) / static_cast<double>(options.rows);
        }
        EXPECT_GE(gap, -1e-12);
      }
      EXPECT_LE(gap, 1e-5) << static_cast<int>(loss) << " with " << workers;
    }
  }
}

}  // namespace
}  // namespace glm
