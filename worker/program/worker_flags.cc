#include "worker/program/worker_flags.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/environment.h"
#include "common/base/log.h"
#include "common/base/refusal_line.h"
#include "common/base/usage_failure.h"
#include "common/base/version.h"
#include "common/grpc/grpc_log.h"
#include "common/launch/launch_facts.h"
#include "worker/api/environment_table.h"
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

// Options are variables by another name: one parser, one set of messages, one table of sentences.
struct Flag {
  const char* name;
  const char* variable;
};

constexpr Flag kFlags[] = {
    {"--coordinator", "COORDD_ADDR"},
    {"--job", "COORDD_JOB_ID"},
    {"--token-file", "COORDD_TOKEN_FILE"},
    {"--tls-ca", "COORDD_TLS_CA"},
    {"--tls-cert", "COORDD_TLS_CERT"},
    {"--tls-key", "COORDD_TLS_KEY"},
    {"--size", "COORDD_SIZE"},
    {"--min-workers", "COORDD_MIN_WORKERS"},
    {"--max-workers", "COORDD_MAX_WORKERS"},
    {"--launcher", "COORDD_LAUNCHER"},
    {"--rank", "COORDD_RANK"},
    {"--local-rank", "COORDD_LOCAL_RANK"},
    {"--node-id", "COORDD_NODE_ID"},
    {"--topology", "COORDD_TOPOLOGY"},
    {"--metrics", "COORDD_METRICS"},
    {"--port-range", "COORDD_PORT_RANGE"},
    {"--transport", "COORDD_TRANSPORT"},
    {"--host-algorithm", "COORDD_HOST_ALGORITHM"},
    {"--check-results", "COORDD_CHECK_RESULTS"},
    {"--join-timeout", "COORDD_JOIN_TIMEOUT"},
    {"--resume-timeout", "COORDD_RESUME_TIMEOUT"},
    {"--timeout", "COORDD_TIMEOUT"},
    {"--log-level", "COORDD_LOG_LEVEL"},
};

// "Time that a collective may take: seconds [COORDD_TIMEOUT]"
std::string HelpOf(const Flag& flag) {
  const VariableRow& row = VariableNamed(flag.variable);
  return absl::StrCat(row.summary, ": ", absl::StrReplaceAll(row.values, {{"`", ""}}), " [",
                      flag.variable, "]");
}

ParsedFlags Usage(absl::string_view what) {
  std::cerr << RefusalLine("coordd-worker", what);
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
        HelpOf(flag));
  }
  bool list_environment = false;
  app.add_flag("--list-environment", list_environment,
               "Print all variables of coordd's programs, as docs/reference/environment.md");
  app.add_flag("--json", command.json, "Print what there is to say as one line of JSON");
  CLI::App* selftest = app.add_subcommand(
      "selftest", "Check every operation, dtype and operator across all ranks, every element");
  CLI::App* allreduce =
      app.add_subcommand("allreduce", "A loop of allreduces of float32 tensors, checked");
  AllreduceLoopOptions& loop = command.allreduce;
  allreduce->add_option("--elements", loop.elements, "Elements of a tensor")
      ->check(NumberFrom(int64_t{0}, int64_t{1} << 34))
      ->capture_default_str();
  allreduce->add_option("--tensors", loop.tensors, "Tensors per iteration, in flight together")
      ->check(NumberFrom(int64_t{1}, int64_t{100000}))
      ->capture_default_str();
  allreduce->add_option("--iterations", loop.iterations, "How many; 0: until SIGTERM")
      ->check(ZeroOrMore())
      ->capture_default_str();
  allreduce->add_option("--interval-ms", interval_ms, "Pause between two iterations")
      ->check(ZeroOrMore())
      ->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    parsed.exit = app.exit(error) == 0 ? kExitOk : kExitUsage;
    return parsed;
  }
  if (list_environment) {
    std::cout << EnvironmentPage();
    parsed.exit = kExitOk;
    return parsed;
  }
  loop.interval = absl::Milliseconds(interval_ms);
  if (selftest->parsed()) command.kind = WorkerCommand::Kind::kSelftest;
  if (allreduce->parsed()) command.kind = WorkerCommand::Kind::kAllreduce;
  command.selftest.json = command.json;
  if (app.count("--coordinator") > 0 && Variable(environment, "COORDD_ADDR").empty())
    return Usage("--coordinator is empty, expected HOST:PORT");
  RouteGrpcLogUnlessWanted(environment);
  absl::StatusOr<WorkerOptions> options = WorkerOptionsFrom(environment, ThisLaunchFacts());
  if (!options.ok()) return Usage(options.status().message());
  command.options = *std::move(options);
  SetLogLevel(command.options.log_level);
  const absl::Status valid = command.options.Validate();
  if (!valid.ok()) return Usage(valid.message());
  return parsed;
}

}  // namespace coordd
