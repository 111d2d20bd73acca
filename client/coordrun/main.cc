// coordrun: the command line of the launcher.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "client/coordrun/horovod_flag.h"
#include "client/coordrun/launcher.h"
#include "client/coordrun/run_options.h"
#include "common/clock.h"
#include "common/environment.h"
#include "common/version.h"

namespace coordd {
namespace {

constexpr int kUsage = 2;

constexpr char kDescription[] =
    "Starts N workers of a job on this machine, and a coordd for them unless one is named:\n\n"
    "  coordrun -np 4 -- ./train --epochs 20\n"
    "  coordrun -np 2 --coordinator node1:7400 --size 4 --first-rank 2 -- ./train";

constexpr char kFooter[] =
    "Each worker finds in its environment:\n"
    "  COORDD_ADDR                     coordd, host:port\n"
    "  COORDD_JOB_ID                   name of the job\n"
    "  COORDD_TOKEN_FILE               file with the job's secret\n"
    "  COORDD_TLS_CA, _CERT, _KEY      its certificates; absent without TLS\n"
    "  COORDD_RANK, COORDD_SIZE        its number and how many there are in all; a hint: the rank\n"
    "                                  that counts is the one that coordd gives\n"
    "  COORDD_LOCAL_RANK, _LOCAL_SIZE  the same on this machine\n"
    "  COORDD_METRICS                  where it serves /metrics; port 0 picks one\n"
    "Others are passed on as they are: COORDD_MIN_WORKERS, COORDD_MAX_WORKERS, COORDD_NODE_ID,\n"
    "COORDD_TOPOLOGY, COORDD_TRANSPORT (auto, shm, ucx), COORDD_JOIN_TIMEOUT and COORDD_TIMEOUT\n"
    "(seconds), COORDD_LOG_LEVEL (debug, info, warning, error).\n\n"
    "Output comes line by line behind \"[rank] \". When a worker fails, coordrun says which one "
    "was\n"
    "first and with what, and ends the rest. SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on "
    "and\n"
    "end the run, a second one kills; SIGUSR1 and SIGUSR2 are passed on.\n\n"
    "Exit status: that of the worker that failed first (128 + number for a signal), 0 when none\n"
    "did, 124 after --timeout, 126 or 127 when the command cannot be run, 1 when the run cannot "
    "be\n"
    "prepared, 2 for wrong usage.";

absl::Duration Seconds(double seconds) { return absl::Seconds(seconds); }

void AddOptions(CLI::App& app, RunOptions* options, std::vector<std::string>* variables) {
  const auto duration = [&app](const std::string& name, absl::Duration* target,
                               const std::string& help) {
    app.add_option_function<double>(
           name, [target](double seconds) { *target = Seconds(seconds); }, help)
        ->check(CLI::NonNegativeNumber)
        ->type_name("SECONDS");
  };
  app.add_option("-n,--np", options->np, "workers to start")->type_name("N")->capture_default_str();
  app.add_option("command", options->command, "program of each worker and its arguments")
      ->required()
      ->type_name("COMMAND");
  app.add_flag("--horovod", options->horovod,
               "COMMAND is `python SCRIPT`, whose `import horovod` is to find coordd");
  app.add_option("--coordinator", options->coordinator, "a coordd that runs already")
      ->type_name("HOST:PORT");
  app.add_option("--tls-ca", options->coordinator_tls.ca, "PEM file for it [COORDD_TLS_CA]");
  app.add_option("--tls-cert", options->coordinator_tls.cert, "PEM file for it [COORDD_TLS_CERT]");
  app.add_option("--tls-key", options->coordinator_tls.key, "PEM file for it [COORDD_TLS_KEY]");
  app.add_option("--size", options->size, "workers of the job in all, on all machines [-np]")
      ->type_name("N");
  app.add_option("--first-rank", options->first_rank, "rank of the first one here")
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--job", options->job, "its name [COORDD_JOB_ID, or the program's]");
  app.add_option("--token-file", options->token_file,
                 "the job's secret [COORDD_TOKEN_FILE, or a random one for this run]");
  app.add_option("--listen", options->listen, "where the coordd that is started listens")
      ->type_name("HOST:PORT")
      ->capture_default_str();
  app.add_option("--http", options->http, "its status page and metrics, or off")
      ->type_name("HOST:PORT")
      ->capture_default_str();
  app.add_flag("!--no-tls", options->tls, "no TLS between workers and it; on loopback only");
  app.add_option("--coordd-arg", options->coordd_arguments,
                 "one more argument for it, e.g. --coordd-arg=--stall-abort=60 (may be repeated)")
      ->allow_extra_args(false);
  app.add_flag("--keep", options->keep, "leave it up when the workers have ended, until Ctrl-C");
  app.add_option("--metrics", options->metrics, "where each worker serves /metrics, or off")
      ->type_name("HOST:PORT")
      ->capture_default_str();
  app.add_option("-x", *variables, "a variable for the workers (may be repeated)")
      ->type_name("VAR[=VALUE]")
      ->allow_extra_args(false);
  app.add_flag("--tag-output,!--no-prefix", options->prefix,
               "whether each line begins with [rank] (the default)");
  app.add_option("--output-dir", options->output_directory,
                 "also write DIR/rank-N.out and DIR/rank-N.err")
      ->type_name("DIR");
  duration("--timeout", &options->timeout, "end the run after this time [never]");
  duration("--linger", &options->linger,
           "what the others have after a failure to notice it themselves [2]");
  duration("--grace", &options->grace, "from SIGTERM to SIGKILL [5]");
  app.add_flag("--json", options->json, "a summary for programs as the last line on stdout");
}

int Main(int argc, char** argv) {
  // mpirun's spelling, which CLI11 would take for -n with the value p.
  std::vector<std::string> arguments;
  bool ours = true;
  for (int i = argc - 1; i > 0; --i) arguments.emplace_back(argv[i]);
  for (auto argument = arguments.rbegin(); argument != arguments.rend() && ours; ++argument) {
    ours = *argument != "--";
    if (*argument == "-np") *argument = "--np";
  }
  CLI::App app(kDescription, "coordrun");
  app.footer(kFooter);
  app.set_version_flag("--version", kVersion);
  app.prefix_command(false);
  app.positionals_at_end(true);
  RunOptions options;
  std::vector<std::string> variables;
  AddOptions(app, &options, &variables);
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  }
  absl::Status valid;
  for (const std::string& variable : variables) valid.Update(ParseVariable(variable, &options));
  valid.Update(options.Validate());
  if (valid.ok() && options.horovod) {
    absl::StatusOr<std::vector<std::string>> command = UnderHorovod(options.command);
    valid.Update(command.status());
    if (command.ok()) options.command = *std::move(command);
  }
  if (!valid.ok()) {
    std::fprintf(stderr, "coordrun: %s\n", std::string(valid.message()).c_str());
    return kUsage;
  }
  return Launcher(options, ReadEnvironment(), Clock::Real()).Run();
}

}  // namespace
}  // namespace coordd

int main(int argc, char** argv) { return coordd::Main(argc, argv); }
