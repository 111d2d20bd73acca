// The command line of `coordd-bench recovery`.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "bench/recovery/recovery.h"

namespace coordd::bench {

struct RecoveryFlags {
  RecoveryOptions options;
  std::string victim = "worker";
  double interval_seconds = 1, lease_seconds = 2, seconds = 10, store_lease_seconds = 3;
};

// `flags` outlives the app.
void AddRecovery(CLI::App& app, RecoveryFlags& flags);
absl::StatusOr<nlohmann::json> MeasureRecovery(const RecoveryFlags& flags);

}  // namespace coordd::bench
