#include "bench/recovery/flags.h"

#include "bench/recovery/board.h"

namespace coordd::bench {

void AddRecovery(CLI::App& app, RecoveryFlags& flags) {
  CLI::App* command = app.add_subcommand(
      "recovery", "Real processes: what the death of a worker, or of coordd, costs a running job");
  command->add_option("--workers", flags.options.workers, "How many")
      ->check(CLI::Range(2, kMaxRecoveryRanks))
      ->capture_default_str();
  command->add_option("--kills", flags.options.kills, "How often")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--victim", flags.victim, "worker: of a fresh job each time; or coordd")
      ->check(CLI::IsMember({"worker", "coordd"}))
      ->capture_default_str();
  command->add_option("--elements", flags.options.elements, "Floats of a step's reduction")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--interval", flags.interval_seconds, "Seconds between kills of coordd")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
}

absl::StatusOr<nlohmann::json> MeasureRecovery(const RecoveryFlags& flags) {
  RecoveryOptions options = flags.options;
  options.coordd_dies = flags.victim == "coordd";
  options.interval = absl::Seconds(flags.interval_seconds);
  return MeasureRecovery(options);
}

}  // namespace coordd::bench
