#include "server/program/server_flags.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/usage_failure.h"
#include "common/base/version.h"
#include "common/launch/connection_file.h"

namespace coordd {
namespace {

constexpr char kDescription[] =
    R"(coordd: rendezvous, ranks, tensor order and status for distributed training jobs.

Start it on a node that every worker can reach, then start the workers with its address:
  coordd                                             this machine only, no TLS
  coordctl certs /etc/coordd/tls --name launch.cluster
  coordd --listen 0.0.0.0:29650 --tls-cert /etc/coordd/tls/server.crt \
         --tls-key /etc/coordd/tls/server.key --tls-ca /etc/coordd/tls/ca.crt
  COORDD_ADDR=launch.cluster:29650 python train.py   a worker
or let `coordrun -np 4 -- COMMAND` do all of that on one machine.
The status page is at http://127.0.0.1:29651/, Prometheus scrapes /metrics and finds the workers
at /v1/targets; `coordctl status` prints the same in a terminal.
Durations are written 500ms, 10s, 5m or 1h; a bare number is seconds.
)";

constexpr char kFooter[] = R"(
SIGHUP has the TLS files read again, which happens by itself, too, when they change (of a coordd on a
terminal it is the end).
Exit codes: 0 stopped by SIGTERM or SIGINT (workers are told, the ports close, within 2 s; a second
signal ends it at once) or by SIGUSR1 (the same, but the jobs go on with the coordd that is started
next on the same state); 2 a flag is wrong; 3 an address cannot be had or a file not be written;
4 another coordd has the state of --store or has taken it over, or it cannot be had now; 5 it cannot
be used until somebody has mended what the sentence says.)";

absl::StatusOr<absl::Duration> ParseFlagDuration(const std::string& text) {
  absl::Duration duration;
  if (absl::ParseDuration(text, &duration)) return duration;
  double seconds = 0;
  if (absl::SimpleAtod(text, &seconds) && std::isfinite(seconds)) return absl::Seconds(seconds);
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\" is not a duration such as 500ms, 10s, 5m or 1h"));
}

// Options whose text is converted by us, into `target`; the default is shown in --help.
void AddDuration(CLI::App& app, const std::string& name, absl::Duration& target,
                 const std::string& help) {
  app.add_option_function<std::string>(
         name,
         [name, &target](const std::string& text) {
           const auto parsed = ParseFlagDuration(text);
           if (!parsed.ok())
             throw CLI::ValidationError(name, std::string(parsed.status().message()));
           target = *parsed;
         },
         help)
      ->type_name("DURATION")
      ->default_str(absl::FormatDuration(target));
}

template <typename Integer>
void AddNumber(CLI::App& app, const std::string& name, Integer& target, const std::string& help) {
  app.add_option(name, target, help)->type_name("N")->capture_default_str();
}

void AddAddresses(CLI::App& app, CoordServerOptions& options) {
  auto parse = [](const std::string& name, const std::string& text) {
    const auto parsed = ParseHostPort(text);
    if (!parsed.ok()) throw CLI::ValidationError(name, std::string(parsed.status().message()));
    return *parsed;
  };
  app.add_option_function<std::string>(
         "--listen",
         [&options, parse](const std::string& text) { options.listen = parse("--listen", text); },
         "Where workers connect (gRPC); port 0 picks one")
      ->type_name("HOST:PORT")
      ->default_str(options.listen.ToString());
  app.add_option_function<std::string>(
         "--http",
         [&options, parse](const std::string& text) {
           options.http.reset();
           if (text != "off") options.http = parse("--http", text);
         },
         "Status page, metrics and health, read-only; beyond loopback with TLS, for whoever "
         "shows a certificate or a token; off: none")
      ->type_name("HOST:PORT")
      ->default_str(options.http->ToString());
}

void AddPortRange(CLI::App& app, const Environment& environment, CoordServerOptions& options) {
  auto parse = [&options](const std::string& text) {
    const auto parsed = ParsePortRange(text);
    if (!parsed.ok())
      throw CLI::ValidationError("--port-range", std::string(parsed.status().message()));
    options.ports = *parsed;
  };
  const auto variable = environment.find("COORDD_PORT_RANGE");
  if (variable != environment.end() && !variable->second.empty()) parse(variable->second);
  app.add_option_function<std::string>("--port-range", parse,
                                       "Where port 0 of --listen picks from [COORDD_PORT_RANGE]")
      ->type_name("A-B");
}

// For whoever starts a coordd for one job.
void AddLauncherOptions(CLI::App& app, ServerFlags& flags) {
  const char* group = "For launchers";
  app.add_option("--ready-fd", flags.ready_fd,
                 "Write {\"listen\", \"http\", \"pid\"} to this descriptor when ready")
      ->type_name("FD")
      ->check(OpenDescriptor())
      ->group(group);
  app.add_option("--exit-with", flags.end.owner,
                 "End when this process has ended (or sends SIGUSR2) and the workers have left, "
                 "which they have 4 s for")
      ->type_name("PID")
      ->check(AboveZero())
      ->group(group);
  AddDuration(app, "--exit-when-idle", flags.end.rule.idle, "End after this time without a worker");
  app.get_option("--exit-when-idle")->group(group)->default_str("never");
  app.add_option("--remove-directory", flags.remove_directory,
                 "Remove this directory, which holds our certificates, at the end")
      ->type_name("DIR")
      ->group(group);
}

void AddFiles(CLI::App& app, CoordServerOptions& options) {
  const char* group = "TLS";
  app.add_option("--tls-cert", options.tls.cert, "Our certificate chain, PEM")
      ->type_name("FILE")
      ->group(group);
  app.add_option("--tls-key", options.tls.key, "Its private key, PEM, readable by us only")
      ->type_name("FILE")
      ->group(group);
  app.add_option("--tls-ca", options.tls.ca,
                 "The authority whose certificates workers and tools must present, PEM")
      ->type_name("FILE")
      ->group(group);
  app.add_flag("--insecure", options.insecure,
               "Listen beyond this machine without TLS all the same, --http as well")
      ->group(group);
  app.add_flag("--any-metrics-address", options.any_metrics_address,
               "List workers' metrics at whatever address they say, not only at one of their own");
  app.add_flag("--grpc-reflection", options.grpc_reflection,
               "Tell every client that is let in which calls there are (gRPC's reflection, for "
               "grpcurl)")
      ->group(group);
  app.add_flag("--insecure-http", options.insecure_http,
               "Let --http listen beyond this machine without TLS, for everybody")
      ->group(group);
  app.add_option("--http-token-file", options.http_token_file,
                 "Whoever sends what it holds (Authorization: Bearer) may ask --http beyond "
                 "loopback, besides viewers' and operators' certificates")
      ->type_name("FILE")
      ->group(group);
  app.add_option("--connection-file", options.connection_file,
                 "Where coordctl finds this coordd (default: in $XDG_RUNTIME_DIR/coordd or "
                 "/tmp/coordd-UID); \"\": nowhere")
      ->type_name("FILE");
  app.add_option("--audit-log", options.audit.file,
                 "Who has made, traced or ended what, and who was refused, a line of JSON each; at "
                 "16 MiB it becomes FILE.1, and so on up to FILE.8")
      ->type_name("FILE");
  app.add_option("--prometheus-file-sd", options.prometheus_file_sd,
                 "Keep the workers' metrics addresses in this file for Prometheus")
      ->type_name("FILE");
}

void AddState(CLI::App& app, ServerFlags& flags) {
  CoordServerOptions& options = flags.server;
  const char* group = "State";
  app.add_option_function<std::string>(
         "--store",
         [&options](const std::string& text) {
           auto place = ParseStatePlace(text);
           if (!place.ok())
             throw CLI::ValidationError("--store", std::string(place.status().message()));
           place->tls = options.store.tls;
           place->lease = options.store.lease;
           options.store = *std::move(place);
         },
         "What is remembered when coordd is started again: memory (nothing), sqlite:DIRECTORY on a "
         "disk of this machine, or etcd:HOST:PORT,HOST:PORT[/PREFIX]. Default: sqlite: and the "
         "port "
         "in $STATE_DIRECTORY, $XDG_STATE_HOME/coordd, ~/.local/state/coordd or "
         "/var/tmp/coordd-UID; "
         "memory with port 0")
      ->take_last()  // launchers say memory first
      ->type_name("PLACE")
      ->group(group);
  app.add_flag("--standby", flags.standby,
               "Wait while another coordd has the state, then take over; sqlite: and etcd: only")
      ->group(group);
  AddDuration(app, "--store-lease", options.store.lease,
              "etcd: how long a leader that is not heard of stays one; whole seconds");
  app.get_option("--store-lease")->group(group);
  app.add_option("--store-cert", options.store.tls.cert, "etcd: our certificate chain, PEM")
      ->type_name("FILE")
      ->group(group);
  app.add_option("--store-key", options.store.tls.key, "etcd: its private key, PEM")
      ->type_name("FILE")
      ->group(group);
  app.add_option("--store-ca", options.store.tls.ca, "etcd: whose certificates it presents, PEM")
      ->type_name("FILE")
      ->group(group);
  app.add_flag("--adopt-state", options.state.adopt,
               "Go on from state that was copied, restored or has lost its end (once)")
      ->group(group);
  app.add_option("--cluster-id", options.state.expected_cluster_id,
                 "Refuse state of another cluster; the name of state that is made now")
      ->type_name("ID")
      ->group(group);
}

void AddDecisions(CLI::App& app, ServerOptions& options) {
  AddNumber(app, "--min-workers", options.min_workers,
            "A job whose first worker says nothing else forms with this many");
  AddNumber(app, "--max-workers", options.max_workers, "… and has at most this many; 0: no limit");
  AddDuration(app, "--settling-window", options.settling_window,
              "Wait after the last join for more, below max-workers");
  AddDuration(app, "--settling-window-after-loss", options.settling_window_after_loss,
              "The same after a worker was lost");
  AddDuration(app, "--reform-timeout", options.reform_timeout,
              "How long the survivors of a loss wait for min-workers to be there again");
  AddNumber(app, "--reset-limit", options.reset_limit,
            "Generations that may follow a job's first one; 0: no limit");
  AddDuration(app, "--heartbeat-interval", options.heartbeat_interval,
              "How often workers say that they live; in jobs of more than 256 less often");
  AddDuration(app, "--lease", options.lease, "A worker silent for this long is lost");
  AddDuration(
      app, "--resume-grace", options.resume_grace,
      "After a start, members of jobs that were running have a lease and this to come back");
  AddDuration(app, "--stall-warning", options.stall_warning,
              "Report a tensor that some ranks have waited for this long");
  AddDuration(app, "--stall-abort", options.stall_abort, "… and make it an error on all ranks");
  AddNumber(app, "--max-batch-bytes", options.max_batch_bytes,
            "Fuse tensors up to this size; 0: never");
  AddNumber(
      app, "--schedule-after", options.schedule_after_steps,
      "Steps that a program must repeat before its ranks execute them without asking; 0: never");
  AddNumber(app, "--slots", options.slots,
            "Tensors of each process set that are known by number; 0: none");
}

void AddBounds(CLI::App& app, ServerOptions& options) {
  const std::vector<CLI::Option*> before = app.get_options();
  AddNumber(app, "--max-jobs", options.max_jobs, "Jobs remembered at once");
  AddNumber(app, "--max-jobs-per-owner", options.max_jobs_per_owner,
            "Jobs that run and were made with certificates of one name, unless an operator's");
  AddNumber(app, "--max-workers-per-job", options.max_workers_per_job, "Workers of one job");
  AddNumber(app, "--max-pending-tensors-per-job", options.max_pending_tensors_per_job,
            "Tensors submitted by some ranks and not by all");
  AddNumber(app, "--max-pending-bytes-per-job", options.max_pending_bytes_per_job,
            "Bytes that these take in coordd");
  AddNumber(app, "--max-store-keys-per-job", options.max_store_keys_per_job,
            "Keys in a job's key-value store");
  AddNumber(app, "--max-store-bytes-per-job", options.max_store_bytes_per_job,
            "Its keys and values together");
  AddNumber(app, "--max-bytes-per-owner", options.max_bytes_per_owner,
            "What is pending and stored of all jobs made with certificates of one name; without "
            "TLS of all jobs");
  AddDuration(app, "--ended-job-retention", options.ended_job_retention,
              "How long an ended job is shown");
  for (CLI::Option* option : app.get_options()) {
    if (std::find(before.begin(), before.end(), option) == before.end()) option->group("Bounds");
  }
}

// The file that coordctl looks for when nothing else was said.
absl::StatusOr<std::string> DefaultConnectionFile(const Environment& environment) {
  COORDD_ASSIGN_OR_RETURN(const std::string directory, ConnectionDirectory(environment));
  return absl::StrCat(directory, "/", getpid(), ".json");
}

}  // namespace

absl::StatusOr<ServerFlags> ParseServerFlags(int argc, const char* const* argv,
                                             const Environment& environment) {
  ServerFlags flags;
  CLI::App app(kDescription, "coordd");
  app.footer(kFooter);
  app.get_formatter()->column_width(36);
  AddAddresses(app, flags.server);
  AddFiles(app, flags.server);
  AddState(app, flags);
  AddDecisions(app, flags.server.decisions);
  AddBounds(app, flags.server.decisions);
  const std::map<std::string, LogLevel> levels = {{"debug", LogLevel::kDebug},
                                                  {"info", LogLevel::kInfo},
                                                  {"warning", LogLevel::kWarning},
                                                  {"error", LogLevel::kError}};
  std::string level = "info";
  app.add_option("--log-level", level, "Least severe lines on stderr")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}))
      ->capture_default_str();
  AddLauncherOptions(app, flags);
  app.set_version_flag("--version", absl::StrCat("coordd ", kVersion));
  try {
    AddPortRange(app, environment, flags.server);
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    flags.print = app.help();
    return flags;
  } catch (const CLI::CallForVersion&) {
    flags.print = absl::StrCat("coordd ", kVersion, "\n");
    return flags;
  } catch (const CLI::ParseError& error) {
    return absl::InvalidArgumentError(UsageSentence(app, error));
  }
  flags.log_level = levels.at(level);
  if (app.count("--store") == 0) {
    flags.server.store = DefaultStatePlace(flags.server.listen, environment);
  }
  COORDD_RETURN_IF_ERROR(flags.server.Validate());
  if (flags.standby && flags.server.store.kind == StatePlace::Kind::kMemory) {
    return absl::InvalidArgumentError(
        "--standby needs state that another coordd can have: --store sqlite:DIRECTORY or etcd:");
  }
  if (app.count("--connection-file") == 0) {
    // Convenience only: without a place for it, coordd still serves.
    const auto path = DefaultConnectionFile(environment);
    if (path.ok()) {
      flags.server.connection_file = *path;
    } else {
      COORDD_LOG(kWarning, "no connection file: ", path.status().message());
    }
  }
  return flags;
}

}  // namespace coordd
