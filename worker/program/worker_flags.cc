#include "worker/program/worker_flags.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/usage_failure.h"
#include "common/base/version.h"
#include "common/launch/launch_facts.h"
#include "worker/api/options_from_environment.h"

namespace coordd {
namespace {

constexpr char kDescription[] =
    R"(coordd-worker: a member of a distributed training job, as a program of its own.

It joins a job at coordd and, without a subcommand, prints its place and stays until SIGTERM.
  coordrun -np 4 -- coordd-worker selftest            checks this machine, without a coordd at hand
  coordd-worker --coordinator launch:29650 --job try --size 2 selftest      run this on two machines
  coordd-worker allreduce --elements 1000000 --iterations 0 --interval-ms 100     a small load
Every option has a variable (COORDD_ADDR, ...), which coordrun sets; the option wins.
)";

constexpr char kFooter[] = R"(
Exit codes: 0 done, or left after SIGTERM; 1 a check failed; 2 a flag or variable is wrong; 3 the
job could not be joined; 4 the generation ended (a member was lost or left, or coordd is gone).)";

// Options are variables by another name: one parser, one set of messages.
struct Flag {
  const char* name;
  const char* variable;
  const char* help;
};

constexpr Flag kFlags[] = {
    {"--coordinator", "COORDD_ADDR", "Where coordd listens: HOST:PORT; auto: found, or started"},
    {"--job", "COORDD_JOB_ID", "Name of the job"},
    {"--token-file", "COORDD_TOKEN_FILE", "File with the job's token"},
    {"--tls-ca", "COORDD_TLS_CA", "Certificate authority of coordd"},
    {"--tls-cert", "COORDD_TLS_CERT", "This worker's certificate"},
    {"--tls-key", "COORDD_TLS_KEY", "Its private key"},
    {"--size", "COORDD_SIZE", "Workers of the job: the least and the most"},
    {"--min-workers", "COORDD_MIN_WORKERS", "The job starts with at least so many"},
    {"--max-workers", "COORDD_MAX_WORKERS", "The job takes at most so many"},
    {"--launcher", "COORDD_LAUNCHER", "Whose variables tell the rank; none: nobody's"},
    {"--rank", "COORDD_RANK", "The rank to have if coordd can arrange it"},
    {"--local-rank", "COORDD_LOCAL_RANK", "The same within the node"},
    {"--node-id", "COORDD_NODE_ID", "Workers with equal ids share memory"},
    {"--topology", "COORDD_TOPOLOGY", "Where this node is, slowest network first: aisle3/rack12"},
    {"--metrics", "COORDD_METRICS",
     "Serve /metrics at HOST:PORT; port 0 picks one; auto: where coordd is reached from"},
    {"--port-range", "COORDD_PORT_RANGE", "Ports to listen on: A-B"},
    {"--transport", "COORDD_TRANSPORT", "auto, mapped, shm or ucx"},
    {"--host-algorithm", "COORDD_HOST_ALGORITHM",
     "Of allreduces between nodes: auto, flat or hierarchical"},
    {"--check-results", "COORDD_CHECK_RESULTS",
     "Compare every result with a reference; tolerance of sums, 1e-6"},
    {"--join-timeout", "COORDD_JOIN_TIMEOUT", "Seconds until the job must have started"},
    {"--resume-timeout", "COORDD_RESUME_TIMEOUT", "Seconds without coordd before everything fails"},
    {"--timeout", "COORDD_TIMEOUT", "Seconds that a collective may take"},
    {"--log-level", "COORDD_LOG_LEVEL", "debug, info, warning or error"},
};

ParsedFlags Usage(absl::string_view what) {
  std::cerr << "coordd-worker: " << what << "\n";
  ParsedFlags parsed;
  parsed.exit = kExitUsage;
  return parsed;
}

}  // namespace

ParsedFlags ParseWorkerFlags(int argc, char** argv, Environment environment) {
  ParsedFlags parsed;
  WorkerCommand& command = parsed.command;
  double interval_ms = 0;
  CLI::App app(kDescription, "coordd-worker");
  app.footer(kFooter);
  app.failure_message(UsageFailure);
  app.set_version_flag("--version", absl::StrCat("coordd-worker ", kVersion));
  app.require_subcommand(0, 1);
  app.fallthrough();  // options may stand behind the subcommand
  for (const Flag& flag : kFlags) {
    app.add_option_function<std::string>(
        flag.name,
        [&environment, &flag](const std::string& text) { environment[flag.variable] = text; },
        std::string(flag.help) + " [" + flag.variable + "]");
  }
  app.add_flag("--json", command.json, "Print what there is to say as one line of JSON");
  CLI::App* selftest = app.add_subcommand(
      "selftest", "Check every operation, dtype and operator across all ranks, every element");
  CLI::App* allreduce =
      app.add_subcommand("allreduce", "A loop of allreduces of float32 tensors, checked");
  AllreduceLoopOptions& loop = command.allreduce;
  allreduce->add_option("--elements", loop.elements, "Elements of a tensor")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 34))
      ->capture_default_str();
  allreduce->add_option("--tensors", loop.tensors, "Tensors per iteration, in flight together")
      ->check(CLI::Range(int64_t{1}, int64_t{100000}))
      ->capture_default_str();
  allreduce->add_option("--iterations", loop.iterations, "How many; 0: until SIGTERM")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  allreduce->add_option("--interval-ms", interval_ms, "Pause between two iterations")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    parsed.exit = app.exit(error) == 0 ? kExitOk : kExitUsage;
    return parsed;
  }
  loop.interval = absl::Milliseconds(interval_ms);
  if (selftest->parsed()) command.kind = WorkerCommand::Kind::kSelftest;
  if (allreduce->parsed()) command.kind = WorkerCommand::Kind::kAllreduce;
  command.selftest.json = command.json;
  absl::StatusOr<WorkerOptions> options = WorkerOptionsFrom(environment, ThisLaunchFacts());
  if (!options.ok()) return Usage(options.status().message());
  command.options = *std::move(options);
  SetLogLevel(command.options.log_level);
  const absl::Status valid = command.options.Validate();
  if (!valid.ok()) return Usage(valid.message());
  return parsed;
}

}  // namespace coordd
