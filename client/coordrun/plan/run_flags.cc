#include "client/coordrun/plan/run_flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/coordrun/plan/horovod_flag.h"
#include "client/coordrun/plan/horovodrun_flags.h"
#include "common/base/refusal_line.h"
#include "common/base/usage_failure.h"
#include "common/base/utf8.h"
#include "common/base/version.h"

namespace coordd {
namespace {

constexpr char kDescription[] =
    "Starts the workers of a job, and a coordd for them unless one is named:\n\n"
    "  coordrun -np 4 python train.py              on this machine\n"
    "  coordrun -H node1:4,node2:4 python train.py   through ssh\n"
    "  coordrun python train.py                    inside sbatch or salloc: through srun\n"
    "  coordrun -np 2 --coordinator node1:7400 --size 4 --first-rank 2 -- ./train\n\n"
    "The flags of horovodrun and ddlrun are understood, or answered.";

constexpr char kFooter[] =
    "Each worker finds in its environment:\n"
    "  COORDD_ADDR                     coordd, host:port\n"
    "  COORDD_JOB_ID                   name of the job\n"
    "  COORDD_TOKEN_FILE               file with the job's secret\n"
    "  COORDD_TLS_CA, _CERT, _KEY      its certificates; absent without TLS\n"
    "  COORDD_RANK, COORDD_SIZE        its number and how many there are in all; a hint: the rank\n"
    "                                  that counts is the one that coordd gives\n"
    "  COORDD_LOCAL_RANK, _LOCAL_SIZE  the same on its machine\n"
    "  COORDD_METRICS                  where it serves /metrics; port 0 picks one\n"
    "  RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, MASTER_PORT\n"
    "                                  what torchrun sets, for torch.distributed; those of -x win\n"
    "  OMP_NUM_THREADS                 its share of the cores, where several share a host and it "
    "is\n"
    "                                  not set\n"
    "Others are passed on as they are: COORDD_MIN_WORKERS, COORDD_MAX_WORKERS, COORDD_NODE_ID,\n"
    "COORDD_TOPOLOGY, COORDD_TRANSPORT (auto, mapped, shm, tcp, ucx), COORDD_DATA_ENCRYPTION (on,\n"
    "off), COORDD_TCP_CONNECTIONS, COORDD_HOST_ALGORITHM (auto, flat, hierarchical),\n"
    "COORDD_JOIN_TIMEOUT and COORDD_TIMEOUT (seconds), COORDD_LOG_LEVEL (debug, info, warning,\n"
    "error).\n\n"
    "Workers on other hosts also get this environment, but for what describes this machine and\n"
    "this login (HOME, USER, SSH_*, SLURM_*, ...), and start in the same folder.\n\n"
    "Output comes line by line behind \"[n] \": n is the number with which coordrun started the\n"
    "worker, its COORDD_RANK. It is its rank in the job until members change (--min-np), and\n"
    "unless COORDD_TOPOLOGY orders the ranks; coordd's events and errors name the ranks of their\n"
    "generation, with host and pid. When a worker fails, coordrun says which one was first and\n"
    "with what, and ends the rest. SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on and\n"
    "end the run, a second one kills; SIGUSR1 and SIGUSR2 are passed on; what is ignored at the\n"
    "start (nohup) stays so. Rank 0 of workers here has coordrun's stdin. When coordrun is "
    "killed,\n"
    "nothing that it has started survives it, on no host.\n\n"
    "Exit status: that of the worker that failed first (128 + number for a signal), 0 when none\n"
    "did, 124 after --timeout, 126 or 127 when the command cannot be run, 1 when the run cannot "
    "be\n"
    "prepared, 2 for wrong usage, also of a coordd that is named: what is there is none, or its\n"
    "TLS does not fit.";

void AddDuration(CLI::App& app, const std::string& name, absl::Duration* target,
                 const std::string& help) {
  app.add_option_function<double>(
         name, [target](double seconds) { *target = absl::Seconds(seconds); }, help)
      ->check(ZeroOrMore("a number of seconds, 0 or more"))
      ->type_name("SECONDS");
}

void AddElastic(CLI::App& app, RunOptions* options) {
  app.add_option("--host-discovery-script", options->discovery_script,
                 "a command that prints the hosts that are there now, 'host' or 'host:slots' a "
                 "line; asked every second: workers are started on those that come and ended on "
                 "those that go")
      ->type_name("COMMAND");
  app.add_option("--max-np", options->max_np,
                 "with --host-discovery-script: at most so many workers [no limit]")
      ->type_name("N")
      ->check(AboveZero());
  app.add_option("--slots-per-host", options->slots_per_host,
                 "workers on a host for which --host-discovery-script prints no number")
      ->type_name("N")
      ->check(AboveZero())
      ->capture_default_str();
  app.add_option("--reset-limit", options->reset_limit,
                 "after so many changes of members a lost worker is the end of the job [none]")
      ->type_name("N")
      ->check(AboveZero());
  AddDuration(app, "--elastic-timeout", &options->elastic_timeout,
              "how long to wait for --min-np workers, at the start and after a loss [600]");
  app.add_option("--drained-status", options->drained_status,
                 "the exit status of one of several pods that was asked to end, once its workers "
                 "have left [0]")
      ->type_name("N")
      ->check(NumberFrom(0, 255));
  app.add_option_function<std::vector<double>>(
         "--blacklist-cooldown-range",
         [options](const std::vector<double>& range) {
           options->cooldown_min = absl::Seconds(range[0]);
           options->cooldown_max = absl::Seconds(range[1]);
         },
         "how long a slot whose worker has failed is not used: from, doubling, to [1 60]")
      ->expected(2)
      ->type_name("SECONDS");
}

void AddDdl(CLI::App& app, RunOptions* options) {
  RunOptions::Ddl* ddl = &options->ddl;
  app.add_option("--mode", ddl->mode,
                 "ddlrun's: p:AxBxCxD is accelerators x nodes x racks x aisles, such as p:6x18x4x2")
      ->type_name("MODE");
  app.add_option("--accelerators", ddl->shape.accelerators,
                 "workers of each host, with -H h1,h2 or an allocation; also ddlrun's")
      ->type_name("N")
      ->check(AboveZero());
  app.add_option("--nodes", ddl->shape.nodes,
                 "ddlrun's: hosts of one rack, in the order in which hosts are named [all]")
      ->type_name("N")
      ->check(AboveZero());
  app.add_option("--racks", ddl->shape.racks, "ddlrun's: racks of one aisle [1]")
      ->type_name("N")
      ->check(AboveZero());
  app.add_option("--aisles", ddl->shape.aisles, "ddlrun's: aisles [1]")
      ->type_name("N")
      ->check(AboveZero());
}

void AddPlaces(CLI::App& app, RunOptions* options) {
  app.add_option_function<int32_t>(
         "-n,--np",
         [options](int32_t np) {
           options->np = np;
           options->np_given = true;
         },
         "workers to start, also -np [1, the slots of -H, or the tasks of the allocation]")
      ->type_name("N");
  app.add_option("--min-np", options->min_np,
                 "go on without workers that fail as long as so many have not; the program must be "
                 "made for it: coordd.torch.elastic, or --on-failure [all are needed]")
      ->type_name("N")
      ->check(AboveZero());
  app.add_option("--on-failure", options->on_failure,
                 "with --min-np: what their failure is to the others: raise, an error of their "
                 "collectives, or continue, which go on among those who are left")
      ->type_name("MODE")
      ->check(CLI::IsMember({"raise", "continue"}))
      ->capture_default_str();
  app.add_option("--max-restarts", options->max_restarts,
                 "with --min-np: start workers that fail again, so many times in all [0]")
      ->type_name("N")
      ->check(ZeroOrMore());
  AddElastic(app, options);
  app.add_option("-H", options->hosts, "hosts and how many workers each takes: h1:4,h2:4, n[1-8]:4")
      ->type_name("HOSTS");
  app.add_option("--hostfile", options->hostfile,
                 "the same in a file: 'h1 slots=4' or 'h1:4' a line")
      ->type_name("FILE");
  AddDdl(app, options);
  app.add_option("--launcher", options->launcher,
                 "local, ssh, blaunch, srun, mpirun, or external (prints what to start, and waits) "
                 "[found out]")
      ->type_name("NAME");
  app.add_option("--launcher-arg", options->launcher_arguments,
                 "one more argument for ssh, blaunch, srun or mpirun, e.g. "
                 "--launcher-arg=--gpus-per-node=4")
      ->allow_extra_args(false);
  app.add_option("-p,--ssh-port", options->ssh_port, "of the hosts' ssh servers")
      ->check(NumberFrom(1, 65535));
  app.add_option("-i,--ssh-identity-file", options->ssh_identity, "the private key to log in with");
  app.add_option("--remote-coordrun", options->remote_coordrun,
                 "path of coordrun on the other hosts [the same as here, else PATH]");
  app.add_option("--chdir", options->directory, "where the workers start [here]")->type_name("DIR");
  app.add_option(
         "--run-dir", options->run_directory,
         "where the folder with the run's secrets is made; for mpirun and external on several "
         "hosts one that all of them see [XDG_RUNTIME_DIR, TMPDIR or /tmp]")
      ->type_name("DIR");
  app.add_option("--network-interfaces", options->networks,
                 "of this machine, on which workers may reach coordd: eth0,ib0 [all]")
      ->join(',');
  AddDuration(app, "--start-timeout", &options->start_timeout,
              "for all hosts to answer [30]; for coordrun's own coordd to listen, 60 at least");
  app.add_option("--node-sessions", options->node_sessions,
                 "on, off or auto: the workers of a node speak to coordd as one, through a relay "
                 "there (local and ssh); auto: from 512 workers on")
      ->type_name("MODE")
      ->check(CLI::IsMember({"auto", "on", "off"}))
      ->capture_default_str();
  app.add_flag("!--skip-checks", options->checks, "start without a look at the hosts");
  app.add_flag("--check", options->check_only,
               "look at the hosts, say what is found, start nothing");
  app.add_flag("--dry-run", options->dry_run, "print what would be run");
  app.add_flag("--verbose", options->verbose, "say more about launching")->multi_option_policy();
}

void AddCoordinator(CLI::App& app, RunOptions* options) {
  app.add_option("--coordinator", options->coordinator, "a coordd that runs already")
      ->type_name("HOST:PORT");
  app.add_option("--tls-ca", options->coordinator_tls.ca,
                 "the authority of its certificate, a PEM file [COORDD_TLS_CA]");
  app.add_option("--tls-cert", options->coordinator_tls.cert,
                 "the certificate to show to it, a PEM file [COORDD_TLS_CERT]");
  app.add_option("--tls-key", options->coordinator_tls.key,
                 "the key of that certificate, a PEM file [COORDD_TLS_KEY]");
  app.add_option("--size", options->size, "workers of the job in all, on all machines [-np]")
      ->type_name("N")
      ->check(AboveZero());
  app.add_option("--first-rank", options->first_rank, "rank of the first one here")
      ->type_name("N")
      ->check(ZeroOrMore())
      ->capture_default_str();
  app.add_option(
      "--job", options->job,
      "its name [the script's or the program's; with --coordinator COORDD_JOB_ID, if that is set]");
  app.add_option("--token-file", options->token_file,
                 "the job's secret [COORDD_TOKEN_FILE, or a random one for this run]");
  app.add_option(
         "--listen", options->listen,
         "where the coordd that is started listens [127.0.0.1:0, or 0.0.0.0:0 for workers on "
         "other hosts]")
      ->type_name("HOST:PORT");
  app.add_option("--port-range", options->port_range,
                 "it takes a free port of these, for firewalls")
      ->type_name("FIRST-LAST");
  app.add_option("--http", options->http, "its status page and metrics, or off")
      ->type_name("HOST:PORT")
      ->capture_default_str();
  app.add_option("--http-token-file", options->http_token_file,
                 "what lets in at --http beyond loopback, which speaks TLS (Authorization: Bearer)")
      ->type_name("FILE");
  app.add_flag(
      "--insecure-http", options->insecure_http,
      "--http beyond loopback is without TLS: whoever reaches it reads what jobs there are");
  app.add_flag("!--no-tls", options->tls, "no TLS between workers and it; on loopback only");
  app.add_option("--coordd-arg", options->coordd_arguments,
                 "one more argument for it, e.g. --coordd-arg=--stall-abort=60 (may be repeated)")
      ->allow_extra_args(false);
  app.add_flag("--keep", options->keep, "leave it up when the workers have ended, until Ctrl-C");
}

void AddWorkers(CLI::App& app, RunOptions* options, std::vector<std::string>* variables) {
  app.add_flag("--horovod", options->horovod,
               "COMMAND is `python SCRIPT`, whose `import horovod` is to find coordd");
  app.add_option_function<std::string>(
         "--torch-backend", [options](const std::string&) { options->torch_backend = true; },
         "coordd: COMMAND is `python SCRIPT`, whose torch.distributed is to use coordd where it "
         "says \"gloo\" or nothing")
      ->check(CLI::IsMember({"coordd"}))
      ->type_name("BACKEND");
  app.add_option(
         "--metrics", options->metrics,
         "where each worker serves /metrics, and the relay of a node those of all, auto (where "
         "coordd is reached from) or off [auto for workers here, else off]")
      ->type_name("HOST:PORT");
  app.add_option_function<double>(
         "--check-results",
         [variables](double tolerance) {
           variables->push_back(absl::StrCat("COORDD_CHECK_RESULTS=", tolerance));
         },
         "compare every result of the host's data plane with a reference, and end with the first "
         "that is wrong by more than this part of what was reduced, such as 1e-6; slow")
      ->check(NumberThat([](double value) { return value > 0 && value <= 0.1; },
                         "a number above 0, at most 0.1", "FLOAT"))
      ->type_name("TOLERANCE");
  app.add_option("-x", *variables, "a variable for the workers (may be repeated)")
      ->type_name("VAR[=VALUE]")
      ->allow_extra_args(false);
  app.add_flag("!--no-torch-env", options->torch_env,
               "no RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, "
               "MASTER_PORT and OMP_NUM_THREADS for the workers");
  app.add_flag_callback(
      "--require-rdma", [variables] { variables->push_back("COORDD_REQUIRE_RDMA=1"); },
      "tensors on GPUs of several hosts go over RDMA, or the first of them fails");
  app.add_option_function<std::string>(
         "--gpu-algorithm",
         [variables](const std::string& algorithm) {
           variables->push_back(absl::StrCat("COORDD_GPU_ALGORITHM=", algorithm));
         },
         "how tensors on GPUs of several hosts are reduced: flat, by NCCL alone, hierarchical, by "
         "NCCL within the hosts and by the host's data plane between them, or auto, hierarchical "
         "where NCCL may not use the RDMA that is there [auto]")
      ->type_name("ALGORITHM")
      ->check(CLI::IsMember({"auto", "flat", "hierarchical"}));
  app.add_flag_callback(
      "--no-gpu-registration", [variables] { variables->push_back("COORDD_GPU_REGISTER=0"); },
      "NCCL is not told of coordd's buffers on GPUs");
  app.add_flag("--tag-output,!--no-prefix", options->prefix,
               "whether each line begins with [n], the number of the worker (the default)");
  app.add_option("--output-dir", options->output_directory,
                 "also write DIR/rank-N.out and DIR/rank-N.err")
      ->type_name("DIR");
  app.add_option_function<std::string>(
         "--output-filename",
         [options](const std::string& directory) {
           options->output_directory = directory;
           options->output_as_horovod = true;
         },
         "also write DIR/rank.N/stdout and DIR/rank.N/stderr, as horovodrun does")
      ->type_name("DIR");
  AddDuration(app, "--timeout", &options->timeout, "end the run after this time [never]");
  AddDuration(app, "--linger", &options->linger,
              "what the others have after a failure to notice it themselves [2]");
  AddDuration(
      app, "--drain-grace", &options->drain_grace,
      "for workers of hosts that are gone to leave at a commit, before they are evicted [60]");
  AddDuration(app, "--grace", &options->grace, "from SIGTERM to SIGKILL [5]");
  app.add_flag("--json", options->json, "a summary for programs as the last line on stdout");
}

// Where the command begins: behind "--", or at the first word that is neither an option nor the
// value of one.
size_t CommandBegin(const CLI::App& app, const std::vector<std::string>& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--" || argument.size() < 2 || argument[0] != '-') return i;
    if (absl::StartsWith(argument, "--") && absl::StrContains(argument, '=')) continue;
    const HorovodrunFlag theirs = FindHorovodrunFlag(argument);
    if (theirs.takes_value) ++i;
    if (theirs.takes_value) continue;
    const std::string& name = theirs.ours.empty() ? argument : theirs.ours;
    const bool is_long = absl::StartsWith(name, "--");
    const CLI::Option* option = app.get_option_no_throw(is_long ? name : name.substr(0, 2));
    const bool value_within = !is_long && name.size() > 2;  // -n4
    if (option == nullptr || value_within) continue;
    // Lists have no bound; of them, each word has a flag of its own.
    const int least = std::max(option->get_items_expected_min(), 0);
    i += static_cast<size_t>(std::max(least, std::min(option->get_items_expected_max(), 1)));
  }
  return arguments.size();
}

// `-H ""`, where a script's variable is not set: without it the run would be another one.
absl::Status RefuseEmpty(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    const std::string name = option->get_name();
    const bool may_be = absl::EndsWith(name, "-arg") || name == "-x";
    if (option->count() == 0 || option->get_items_expected_max() == 0 || may_be) continue;
    for (const std::string& value : option->results()) {
      if (!value.empty()) continue;
      return absl::InvalidArgumentError(absl::StrCat(name, " has an empty value: expected ",
                                                     option->get_type_name(), ", or no ", name));
    }
  }
  return absl::OkStatus();
}

// Without what CLI11 writes behind the name of a flag that takes something away: --no-tls{false}.
class Help : public CLI::Formatter {
 public:
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    return absl::StrReplaceAll(CLI::Formatter::make_option_name(option, is_positional),
                               {{"{false}", ""}});
  }
};

int Refuse(const absl::Status& status) {
  std::fputs(RefusalLine("coordrun", status.message()).c_str(), stderr);
  return kExitUsage;
}

}  // namespace

RunFlags ParseRunFlags(const std::vector<std::string>& arguments) {
  RunFlags flags;
  RunOptions& options = flags.options;
  std::vector<std::string> variables;
  CLI::App app(kDescription, "coordrun");
  app.footer(kFooter);
  app.formatter(std::make_shared<Help>());
  app.failure_message(UsageFailure);
  app.set_version_flag("-v,--version", absl::StrCat("coordrun ", kVersion));
  AddPlaces(app, &options);
  AddWorkers(app, &options, &variables);
  AddCoordinator(app, &options);
  app.add_flag("--agent", flags.agent)->group("");  // hidden: for coordrun itself
  app.add_option("--mpi-rank", flags.mpi_rank)->group("");

  const size_t begin = std::min(CommandBegin(app, arguments), arguments.size());
  const auto command = arguments.begin() + static_cast<std::ptrdiff_t>(begin);
  const bool dashes = command != arguments.end() && *command == "--";
  options.command.assign(command + (dashes ? 1 : 0), arguments.end());
  std::string note;
  absl::StatusOr<std::vector<std::string>> own =
      TranslateHorovodrun({arguments.begin(), command}, &note);
  if (!note.empty()) options.notes.push_back(std::move(note));
  if (!own.ok()) {
    flags.exit = Refuse(own.status());
    return flags;
  }
  std::reverse(own->begin(), own->end());  // as CLI11 takes them
  try {
    app.parse(*own);
  } catch (const CLI::ParseError& error) {
    flags.exit = app.exit(error) == 0 ? 0 : kExitUsage;
    return flags;
  }
  if (flags.agent || !flags.mpi_rank.empty()) return flags;
  absl::Status valid = RefuseEmpty(app);
  for (const std::string& variable : variables) valid.Update(ParseVariable(variable, &options));
  valid.Update(options.Validate());
  if (valid.ok() && options.horovod) {
    absl::StatusOr<std::vector<std::string>> command = UnderHorovod(options.command);
    valid.Update(command.status());
    if (command.ok()) options.command = *std::move(command);
  }
  if (valid.ok() && options.torch_backend) {
    absl::StatusOr<std::vector<std::string>> command = UnderTorchBackend(options.command);
    valid.Update(command.status());
    if (command.ok()) options.command = *std::move(command);
  }
  const bool fixed = options.discovery_script.empty() && options.max_np > 0;
  if (fixed && (!options.np_given || options.np != options.max_np)) {
    const std::string least =
        options.min_np > 0 ? absl::StrCat(" --min-np ", options.min_np) : std::string();
    options.notes.push_back(absl::StrCat("no --host-discovery-script: --max-np ", options.max_np,
                                         " has no effect; -np ", options.max_np, least, " starts ",
                                         options.max_np));
  }
  if (!valid.ok()) flags.exit = Refuse(valid);
  return flags;
}

}  // namespace coordd
