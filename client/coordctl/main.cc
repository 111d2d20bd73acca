// coordctl: what operators ask and make.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "client/coordctl/admin_client.h"
#include "client/coordctl/ask_for_jobs.h"
#include "client/coordctl/certs_command.h"
#include "client/coordctl/command_options.h"
#include "client/coordctl/dismiss_view.h"
#include "client/coordctl/events_view.h"
#include "client/coordctl/exit_code.h"
#include "client/coordctl/exit_report.h"
#include "client/coordctl/memory_bound.h"
#include "client/coordctl/own_user.h"
#include "client/coordctl/state_view.h"
#include "client/coordctl/target.h"
#include "client/coordctl/target_by_job.h"
#include "client/coordctl/timeline_file.h"
#include "client/coordctl/trace_report.h"
#include "client/coordctl/whoami.h"
#include "client/coordctl/worker_connection.h"
#include "common/base/clock.h"
#include "common/base/counted.h"
#include "common/base/environment.h"
#include "common/base/refusal_line.h"
#include "common/base/standard_streams.h"
#include "common/base/status_macros.h"
#include "common/base/token_file.h"
#include "common/base/usage_failure.h"
#include "common/base/utf8.h"
#include "common/base/version.h"
#include "common/base/wait_until.h"
#include "common/grpc/grpc_log.h"
#include "common/grpc/own_certificate.h"
#include "common/launch/auto_coordinator.h"
#include "common/launch/connection_file.h"
#include "common/launch/host_identity.h"
#include "common/launch/host_list.h"
#include "common/launch/launch_facts.h"
#include "common/launch/launcher_detect.h"
#include "common/machine/build_info.h"
#include "common/machine/transport_rows.h"
#include "common/protocol/printable_message.h"
#include "common/protocol/proto_json.h"

namespace coordd {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(5);
// Where coordd closes connections, since more come than it lets in: most that try so long get in.
constexpr absl::Duration kTriesFor = absl::Seconds(20);
// How soon `events --follow` shows what has happened.
constexpr absl::Duration kFollowInterval = absl::Milliseconds(500);

struct Arguments {
  TargetRequest target;
  bool json = false;
  std::string job;
  std::string token_file;
  int limit = 0;
  bool follow = false;
  int steps = 0;
  double seconds = 0;
  std::string output;
  std::vector<std::string> host_lists;
  DismissArguments dismiss;
  bool lift = false;
  std::string launcher;
};

int Report(const absl::Status& status, ExitCode code) {
  std::fputs(RefusalLine("coordctl", status.message()).c_str(), stderr);
  return code;
}

// `text`, of lines, ends with one line end, whatever it brought.
void Print(absl::string_view text) {
  std::string lines = PrintableText(text, "\n");
  if (lines.empty() || lines.back() != '\n') lines += '\n';
  std::fputs(lines.c_str(), stdout);
}

void PrintJson(absl::string_view json) { Print(PrintableJson(json)); }

// `message` as JSON, or by `text`, which it is first made fit for.
template <typename Message, typename Json, typename Text>
void PrintEither(bool as_json, Message& message, Json json, Text text) {
  if (as_json) return PrintJson(json(message));
  MakePrintable(&message);
  Print(text(message));
}

absl::StatusOr<Target> FindTarget(const Arguments& arguments, const Environment& environment) {
  std::vector<Connection> live;
  const absl::StatusOr<std::string> directory = ConnectionDirectory(environment);
  absl::Status unusable;
  if (directory.ok()) live = LiveConnections(*directory, &unusable);
  if (geteuid() == 0) {
    for (Connection& service : ServiceConnections(kServiceConnections, kServiceCertificates))
      live.push_back(std::move(service));
  }
  absl::StatusOr<Target> target = ChooseTarget(arguments.target, environment, live);
  if (absl::IsFailedPrecondition(target.status())) {
    const std::string& job = arguments.job.empty() ? arguments.dismiss.job : arguments.job;
    target = ChooseByJob(job, AskForJobs(live));
  }
  if (absl::IsNotFound(target.status()) && !directory.ok()) return directory.status();
  if (absl::IsNotFound(target.status()) && !unusable.ok()) return unusable;
  if (!target.ok()) return target;
  COORDD_RETURN_IF_ERROR(CheckOwnCertificate(target->tls, TlsSide::kClient));
  target->tries_for = kTriesFor;
  const std::string token_file = arguments.token_file.empty()
                                     ? Variable(environment, "COORDD_TOKEN_FILE")
                                     : arguments.token_file;
  if (!token_file.empty()) {
    const absl::StatusOr<std::string> token = ReadTokenFile("--token-file", token_file);
    // An operator needs none, whatever a variable names.
    if (!token.ok() && !arguments.token_file.empty()) return token.status();
    target->token = token.value_or("");
  }
  return target;
}

int ReportNoTarget(const absl::Status& status) {
  return Report(status, absl::IsInvalidArgument(status) ? kUsage : kNoCoordd);
}

// Status and Jobs differ in what they print.
int ShowState(const Arguments& arguments, const Environment& environment,
              std::string (*text)(const v1::ServerState&),
              std::string (*json)(const v1::ServerState&)) {
  const absl::StatusOr<Target> target = FindTarget(arguments, environment);
  if (!target.ok()) return ReportNoTarget(target.status());
  absl::StatusOr<v1::ServerState> state = FetchState(*target, arguments.job, kTimeout);
  if (!state.ok()) return Report(state.status(), ExitCodeOf(state.status()));
  if (!arguments.job.empty() && state->jobs().empty()) {
    return Report(absl::NotFoundError(absl::StrCat("coordd at ", target->AddressText(),
                                                   " knows no job ", arguments.job)),
                  kNoJob);
  }
  PrintEither(arguments.json, *state, json, text);
  return kOk;
}

int Trace(const Arguments& arguments, const Environment& environment) {
  const absl::StatusOr<Target> target = FindTarget(arguments, environment);
  if (!target.ok()) return ReportNoTarget(target.status());
  v1::TraceRequest request;
  request.set_job(arguments.job);
  request.set_seconds(arguments.seconds);
  request.set_steps(arguments.seconds > 0 ? 0 : arguments.steps);
  // Of a job that hangs, what it hangs in may be gone when coordd has ended it.
  const absl::StatusOr<v1::ServerState> before = FetchState(*target, arguments.job, kTimeout);
  // Who does not answer that will not answer what takes minutes.
  if (absl::IsUnavailable(before.status()) || absl::IsDeadlineExceeded(before.status()))
    return Report(before.status(), ExitCodeOf(before.status()));
  if (before.ok()) request.set_job(JobOrItsGroup(*before, arguments.job));
  if (!arguments.json && before.ok() && !before->jobs().empty()) {
    const std::string span = request.steps() > 0 ? Counted(request.steps(), "step")
                                                 : absl::StrCat(request.seconds(), " s");
    std::fprintf(stderr, "coordctl: recording %s of job %s...\n", span.c_str(),
                 PrintableText(request.job()).c_str());
  }
  const absl::StatusOr<v1::TraceReply> reply = FetchTrace(*target, request, TraceTimeout(request));
  if (!reply.ok()) return Report(reply.status(), ExitCodeOf(reply.status()));
  const std::string file =
      arguments.output.empty() ? arguments.job + ".trace.json" : arguments.output;
  const absl::Status written = WriteTimeline(file, TimelineOf(*reply));
  if (!written.ok()) return Report(written, kFailed);
  const TraceSummary summary = Summarize(*reply);
  if (!arguments.json && NothingExecuted(summary)) {
    const absl::StatusOr<v1::ServerState> now = FetchState(*target, arguments.job, kTimeout);
    const std::string waits = StallsText(now.ok() ? *now : v1::ServerState());
    const std::string waited = StallsText(before.ok() ? *before : v1::ServerState());
    Print(NothingText(summary, waits.empty() ? waited : waits));
    return kOk;
  }
  arguments.json ? PrintJson(ToJson(summary, file)) : Print(ToText(summary, file));
  return kOk;
}

// With --json and --follow, an object a line.
void PrintEvents(const Arguments& arguments, v1::EventList& list) {
  const auto json = [](const auto& message) { return ToJson(message, /*pretty=*/false); };
  const auto text = [](const v1::JobEvent& event) {
    return EventText(event, absl::LocalTimeZone());
  };
  if (arguments.follow) {
    for (v1::JobEvent& event : *list.mutable_events())
      PrintEither(arguments.json, event, json, text);
  } else {
    PrintEither(arguments.json, list, json,
                [](const v1::EventList& all) { return EventsText(all, absl::LocalTimeZone()); });
  }
  std::fflush(stdout);
}

int Events(const Arguments& arguments, const Environment& environment) {
  const absl::StatusOr<Target> target = FindTarget(arguments, environment);
  if (!target.ok()) return ReportNoTarget(target.status());
  v1::GetEventsRequest request;
  request.set_job(arguments.job);
  request.set_limit(arguments.limit);
  int64_t epoch = 0;
  bool lost = false;
  for (;;) {
    absl::StatusOr<v1::EventList> list = FetchEvents(*target, request, kTimeout);
    // Who follows wants to see, above all, how a coordd that has gone comes back.
    if (!list.ok() && (!arguments.follow || epoch == 0))
      return Report(list.status(), ExitCodeOf(list.status()));
    if (!list.ok() && !std::exchange(lost, true)) Report(list.status(), kFailed);
    if (list.ok() && !arguments.follow && !arguments.job.empty() && list->events().empty()) {
      return Report(absl::NotFoundError(absl::StrCat("coordd at ", target->AddressText(),
                                                     " knows no event of a job ", arguments.job)),
                    kNoJob);
    }
    if (list.ok()) {
      request = NextRequest(request, *list, epoch);
      // Of one that was started again, what it had said until now is asked for next.
      if (epoch == 0 || epoch == list->epoch()) PrintEvents(arguments, *list);
      epoch = list->epoch();
      lost = false;
    }
    if (!arguments.follow) return kOk;
    WaitUntil(Clock::Real(), Clock::Real().Now() + kFollowInterval);
  }
}

int Dismiss(const Arguments& arguments, v1::DismissAction action, const Environment& environment) {
  if (const absl::Status clear = CheckDismiss(arguments.dismiss); !clear.ok())
    return Report(clear, kUsage);
  const absl::StatusOr<Target> target = FindTarget(arguments, environment);
  if (!target.ok()) return ReportNoTarget(target.status());
  DismissArguments asked = arguments.dismiss;
  asked.action = action;
  absl::StatusOr<v1::DismissReply> reply = DismissWorkers(
      *target, DismissRequestFrom(asked, WithUser(environment), ThisHost("").hostname), kTimeout);
  if (!reply.ok()) return Report(reply.status(), ExitCodeOfChange(reply.status()));
  PrintEither(
      arguments.json, *reply, [](const auto& message) { return ToJson(message, /*pretty=*/false); },
      [action](const v1::DismissReply& done) { return DismissText(action, done); });
  return kOk;
}

std::string StateJson(const v1::ServerState& state) { return ToJson(state, /*pretty=*/false); }

int CheckBuild(const Arguments& arguments, const Environment& environment) {
  std::vector<Component> components = BuildComponents(environment);
  for (Component& row : TransportComponents(environment)) components.push_back(std::move(row));
  if (arguments.json) {
    PrintJson(ComponentsToJson(components));
    return kOk;
  }
  std::printf("coordd %s, protocol %d\n", kVersion, kProtocolVersion);
  for (const Component& component : components) Print(ToLine(component));
  return kOk;
}

// Each list by itself, so that an error's column is that of one argument.
int Expand(const Arguments& arguments) {
  std::vector<std::string> hosts;
  for (const std::string& list : arguments.host_lists) {
    absl::StatusOr<std::vector<std::string>> expanded = ExpandHostList(list);
    if (!expanded.ok()) return Report(expanded.status(), kUsage);
    hosts.insert(hosts.end(), expanded->begin(), expanded->end());
  }
  if (arguments.json) {
    PrintJson(nlohmann::json(hosts).dump());
    return kOk;
  }
  for (const std::string& host : hosts) std::printf("%s\n", host.c_str());
  return kOk;
}

// How a worker here would find its coordd.
std::string CoordinatorSentence(const LaunchPlace& place, const Environment& environment) {
  const auto address = environment.find("COORDD_ADDR");
  if (address != environment.end() && !address->second.empty() && address->second != "auto")
    return address->second + " (COORDD_ADDR)";
  if (!place.not_a_rank.empty()) return "";
  const absl::StatusOr<AutoPlan> plan = PlanAutoCoordinator(place, AutoSettingsFrom(environment));
  return plan.ok() ? plan->why : absl::StrCat("none: ", plan.status().message());
}

int Whoami(const Arguments& arguments, const Environment& environment) {
  if (arguments.target.coordinator.has_value())
    return Report(WhoamiOfACoordd(*arguments.target.coordinator), kUsage);
  std::string launcher = arguments.launcher;
  if (launcher.empty()) {
    const auto variable = environment.find("COORDD_LAUNCHER");
    if (variable != environment.end()) launcher = variable->second;
  }
  const absl::StatusOr<LaunchPlace> place =
      DetectLaunchPlace(environment, ThisLaunchFacts(), launcher);
  if (!place.ok()) return Report(place.status(), kUsage);
  const std::string coordinator = CoordinatorSentence(*place, environment);
  const WorkerConnection connection = ReadWorkerConnection(environment);
  Print(arguments.json ? WhoamiJson(*place, coordinator, connection)
                       : WhoamiText(*place, coordinator, connection));
  return kOk;
}

void AddTargetOptions(CLI::App* command, Arguments* arguments) {
  command
      ->add_option("--coordinator", arguments->target.coordinator,
                   "which coordd; of several that stand by for each other, the one that serves "
                   "[COORDD_ADDR; else the one that runs on this machine]")
      ->type_name("HOST:PORT[,HOST:PORT...]");
  command
      ->add_option("--tls-ca", arguments->target.tls.ca,
                   "the authority of coordd's certificate [COORDD_TLS_CA]")
      ->type_name("FILE");
  command
      ->add_option("--tls-cert", arguments->target.tls.cert,
                   "your certificate, which says your role [COORDD_TLS_CERT]")
      ->type_name("FILE");
  command->add_option("--tls-key", arguments->target.tls.key, "its private key [COORDD_TLS_KEY]")
      ->type_name("FILE");
  command
      ->add_option("--token-file", arguments->token_file,
                   "holds the job's token, with which it is your own; operators need none "
                   "[COORDD_TOKEN_FILE]")
      ->type_name("FILE");
}

void AddTraceCommand(CLI::App& app, Arguments* arguments) {
  CLI::App* trace = app.add_subcommand(
      "trace",
      "Let a job's ranks record what they execute, write a timeline of all of them that Perfetto "
      "opens, and tell where a step goes and which rank the others wait for. It gives up a minute "
      "after the recording should have ended, which is after five minutes at most, and at once "
      "where coordd does not answer");
  trace->add_option("JOB,--job", arguments->job, "its name, as `coordctl jobs` shows it")
      ->required();
  trace
      ->add_option("--steps", arguments->steps,
                   "so many steps of the program, known by their repetition; seconds where nothing "
                   "repeats")
      ->check(NumberFrom(1, 10000))
      ->default_val(10);
  trace->add_option("--seconds", arguments->seconds, "so long instead")
      ->check(NumberFrom(0.1, 300.0, "seconds"));
  trace->add_option("--output", arguments->output, "file of the timeline [JOB.trace.json]");
  AddTargetOptions(trace, arguments);
}

void AddEventsCommand(CLI::App& app, Arguments* arguments) {
  CLI::App* events = app.add_subcommand(
      "events",
      "What has happened: who joined, left or was lost and why, which generation followed, what "
      "stalled. RUNBOOK.md (share/coordd of an installation, docs of the sources) says what to do "
      "about each line");
  events->add_option("JOB,--job", arguments->job, "only those of this one");
  events->add_option("--limit", arguments->limit, "only the newest so many")
      ->check(NumberFrom(1, 8192));
  events->add_flag(
      "--follow,-f", arguments->follow,
      "print what happens from now on, too, until Ctrl-C; with --json a line for each event");
  AddTargetOptions(events, arguments);
}

void AddDismissCommands(CLI::App& app, Arguments* arguments) {
  CLI::App* drain = app.add_subcommand(
      "drain",
      "Ask a rank, or all ranks of a node, to leave: their programs get a notice, leave at their "
      "next commit and end with status 0, and the others go on without them and without a failed "
      "collective. Who has not left when the grace is over is evicted. Needs an elastic job "
      "(coordrun --min-np) whose program commits (coordd.elastic); refused where fewer than "
      "min_workers would be left. A drained node takes no new workers of the job, until --lift or "
      "the end of the job. Survives the end of coordd. RUNBOOK.md (share/coordd of an "
      "installation, docs of the sources) says how to empty a node");
  drain->add_option("--grace", arguments->dismiss.grace_seconds, "seconds until eviction [60]")
      ->check(NumberFrom(0.001, 604800.0, "seconds"));
  CLI::App* evict = app.add_subcommand(
      "evict",
      "Declare a rank, or all ranks of a node, gone at once: their connections are closed, and the "
      "others repair as after a loss. Their processes get an error that says so; they, or what is "
      "started in their place, may come back as newcomers");
  for (CLI::App* command : {drain, evict}) {
    command
        ->add_option("NODE|RANK,--node,--rank", arguments->dismiss.who,
                     "a number: the rank in the generation that runs, of the job of --job; else a "
                     "host name or node id, as `coordctl status` shows them")
        ->required();
    command->add_option("--job", arguments->dismiss.job,
                        "whose; a rank needs it, of a node it is [the only one that runs]");
    command->add_flag("--force", arguments->dismiss.force,
                      "also where the job could not go on without them");
    AddTargetOptions(command, arguments);
  }
  drain->add_flag("--lift", arguments->lift,
                  "take the notice back from who has not left yet; a node takes new workers again");
}

void AddLaunchCommands(CLI::App& app, Arguments* arguments) {
  CLI::App* expand = app.add_subcommand(
      "expand", "One host a line of lists in Slurm's notation: 'n[1-3,7],login1'");
  expand->add_option("LIST", arguments->host_lists, "quoted, for the shell")->required();
  CLI::App* whoami = app.add_subcommand(
      "whoami",
      "Who a worker started here and now would be: launcher, rank, hosts, certificate, and why. Of "
      "variables and files of this machine: no coordd is asked");
  whoami->add_option("--coordinator", arguments->target.coordinator,
                     "refused: 'coordctl status' is what asks one");
  whoami->add_option("--launcher", arguments->launcher,
                     absl::StrCat("whose variables count [COORDD_LAUNCHER]: ",
                                  absl::StrJoin(LauncherNames(), ", ")));
}

int Ended(const ExitArguments& exit, const Arguments& arguments, const Environment& environment) {
  const absl::StatusOr<v1::ReportExitsRequest> request = ExitRequestFrom(exit);
  if (!request.ok()) return Report(request.status(), kUsage);
  const absl::StatusOr<Target> target = FindTarget(arguments, environment);
  if (!target.ok()) return ReportNoTarget(target.status());
  const absl::StatusOr<v1::ReportExitsReply> reply = ReportExits(*target, *request, kTimeout);
  if (!reply.ok()) return Report(reply.status(), ExitCodeOfChange(reply.status()));
  return kOk;
}

int Certs(const CertsArguments& certs, bool as_json, const Environment& environment) {
  const absl::StatusOr<std::string> made = MakeCerts(certs, as_json, WithUser(environment));
  if (!made.ok())
    return Report(made.status(), absl::IsInvalidArgument(made.status()) ? kUsage : kFailed);
  Print(*made);
  return kOk;
}

int Main(int argc, char** argv) {
  CLI::App app(
      "Shows what a coordd knows, who a worker would be, what this build contains; makes workers "
      "leave; makes certificates.",
      "coordctl");
  app.footer(kExitCodes);
  app.failure_message(UsageFailure);
  app.set_version_flag("--version", absl::StrCat("coordctl ", kVersion));
  app.require_subcommand(1);
  Arguments arguments;
  CLI::App* status = app.add_subcommand(
      "status",
      "Jobs with phase, generation, ranks by node and what each does, stalled tensors with the "
      "ranks that are in and those missing, and who has departed why");
  status->add_option("JOB,--job", arguments.job, "only this one");
  CLI::App* jobs = app.add_subcommand("jobs", "One line for each job");
  CLI::App* check_build =
      app.add_subcommand("check-build", "What this build was made with, and what is there now");
  CertsArguments certs_arguments;
  CLI::App* certs = AddCertsCommand(app, &certs_arguments);
  for (CLI::App* command : {status, jobs}) AddTargetOptions(command, &arguments);
  AddEventsCommand(app, &arguments);
  AddTraceCommand(app, &arguments);
  AddDismissCommands(app, &arguments);
  ExitArguments exit;
  AddTargetOptions(AddEndedCommand(app, &exit), &arguments);
  AddLaunchCommands(app, &arguments);
  for (CLI::App* command : app.get_subcommands({})) {
    command->add_flag("--json", arguments.json, "print JSON, for programs");
    command->footer(kExitCodes);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kOk : kUsage;
  }
  BoundMemory(kMemoryMax);
  const Environment environment = ReadEnvironment();
  RouteGrpcLogUnlessWanted(environment);
  if (status->parsed()) return ShowState(arguments, environment, StatusText, StateJson);
  if (jobs->parsed()) return ShowState(arguments, environment, JobsText, JobsJson);
  if (app.got_subcommand("events")) return Events(arguments, environment);
  if (app.got_subcommand("trace")) return Trace(arguments, environment);
  if (app.got_subcommand("evict")) return Dismiss(arguments, v1::DISMISS_ACTION_EVICT, environment);
  if (app.got_subcommand("drain")) {
    return Dismiss(arguments, arguments.lift ? v1::DISMISS_ACTION_LIFT : v1::DISMISS_ACTION_DRAIN,
                   environment);
  }
  if (app.got_subcommand("ended")) return Ended(exit, arguments, environment);
  if (check_build->parsed()) return CheckBuild(arguments, environment);
  if (certs->parsed()) return Certs(certs_arguments, arguments.json, environment);
  return app.got_subcommand("expand") ? Expand(arguments) : Whoami(arguments, environment);
}

}  // namespace
}  // namespace coordd

int main(int argc, char** argv) {
  coordd::OpenStandardStreams(argv);
  return coordd::Main(argc, argv);
}
