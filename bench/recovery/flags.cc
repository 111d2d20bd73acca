#include "bench/recovery/flags.h"

#include "bench/recovery/board.h"
#include "common/base/usage_failure.h"

namespace coordd::bench {
void AddRecovery(CLI::App& app, RecoveryFlags& flags) {
  CLI::App* command = app.add_subcommand("recovery",
                                         "Real processes: what the death of a worker, or of "
                                         "coordd, or a newcomer costs a running job");
  command->add_option("--workers", flags.options.workers, "How many")
      ->check(CLI::Range(2, kMaxRecoveryRanks - 1))
      ->capture_default_str();
  command->add_option("--kills", flags.options.times, "How often it happens")
      ->check(AboveZero())
      ->capture_default_str();
  command
      ->add_option(
          "--victim", flags.victim,
          "To whom, of a fresh job each time: worker (kill -9); stopped, a worker (SIGSTOP, "
          "and SIGCONT when it is gone); newcomer, nobody: one more joins. Or, under one "
          "job: coordd (kill -9); nobody: nothing happens, for --seconds. Or "
          "coordd-writing: kill -9 while it stores new generations, whose records must "
          "all be there")
      ->check(CLI::IsMember(Victims()))
      ->capture_default_str();
  command
      ->add_option("--on-failure", flags.options.on_failure,
                   "What the loss of a worker is to the others: raise (an error, and they agree "
                   "where to go on) or continue (nothing)")
      ->check(CLI::IsMember({"raise", "continue"}))
      ->capture_default_str();
  command->add_option("--elements", flags.options.elements, "Floats of a step's reduction")
      ->check(AboveZero())
      ->capture_default_str();
  command->add_option("--interval", flags.interval_seconds, "Seconds between kills of coordd")
      ->check(AboveZero())
      ->capture_default_str();
  command->add_option("--lease", flags.lease_seconds, "Seconds of the lease (stopped)")
      ->check(CLI::Range(0.5, 600.0))
      ->capture_default_str();
  command->add_option("--etcd", flags.options.etcd,
                      "HOST:PORT of an etcd: coordd stores there, and another one stands by "
                      "(coordd; default: SQLite, and it is started again)");
  command
      ->add_option("--store-lease", flags.store_lease_seconds, "Seconds of coordd's lease in etcd")
      ->check(CLI::Range(1.0, 600.0))
      ->capture_default_str();
  command->add_option("--seconds", flags.seconds, "How long nothing happens (nobody)")
      ->check(AboveZero())
      ->capture_default_str();
  command
      ->add_option("--planted", flags.options.planted,
                   "So often a record is removed, which must be noticed (coordd-writing)")
      ->check(ZeroOrMore())
      ->capture_default_str();
  command
      ->add_option("--spinning", flags.options.spinning,
                   "Processes beside the job that want a core each")
      ->check(CLI::Range(0, 256))
      ->capture_default_str();
}

absl::StatusOr<nlohmann::json> MeasureRecovery(const RecoveryFlags& flags) {
  RecoveryOptions options = flags.options;
  options.victim = Victims().at(flags.victim);
  options.interval = absl::Seconds(flags.interval_seconds);
  options.lease = absl::Seconds(flags.lease_seconds);
  options.duration = absl::Seconds(flags.seconds);
  options.store_lease = absl::Seconds(flags.store_lease_seconds);
  return MeasureRecovery(options);
}

}  // namespace coordd::bench
