// coordrun: starts the workers of a job, here or on other hosts, and a coordd for them.
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "client/coordrun/agent/agent.h"
#include "client/coordrun/agent/mpi_rank.h"
#include "client/coordrun/coordinator/run_coordinator.h"
#include "client/coordrun/plan/ddl_part.h"
#include "client/coordrun/plan/launch_address.h"
#include "client/coordrun/plan/nested_launch.h"
#include "client/coordrun/plan/pod_part.h"
#include "client/coordrun/plan/run_flags.h"
#include "client/coordrun/plan/run_plan.h"
#include "client/coordrun/process/run_directory.h"
#include "client/coordrun/process/supervisor.h"
#include "client/coordrun/program/dry_run.h"
#include "client/coordrun/program/host_discovery.h"
#include "client/coordrun/program/launcher.h"
#include "common/base/clock.h"
#include "common/base/environment.h"
#include "common/base/refusal_line.h"
#include "common/base/standard_streams.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/grpc/grpc_log.h"
#include "common/launch/launch_facts.h"
#include "common/launch/launcher_detect.h"

namespace coordd {
namespace {

// Each worker takes two descriptors here, and four with --output-dir.
void RaiseFileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

void Tell(const std::string& sentence) {
  std::fprintf(stderr, "coordrun: %s\n", PrintableText(sentence, "\n").c_str());
}

absl::StatusOr<RunPlan> Plan(RunOptions& options, const Environment& environment, Clock& clock) {
  if (!options.discovery_script.empty()) {
    COORDD_ASSIGN_OR_RETURN(const std::vector<HostSlots> hosts,
                            DiscoverFirstHosts(options, environment, clock, Tell));
    UseDiscovered(hosts, &options);
  }
  PlanInputs inputs;
  inputs.environment = environment;
  const LaunchFacts facts = ThisLaunchFacts();
  inputs.hostname = facts.hostname;
  const auto place = DetectLaunchPlace(environment, facts, "");
  if (place.ok()) {
    inputs.allocation = AllocationOf(*place);
    inputs.pod = PodOf(*place);
    const bool ignored = Variable(environment, "COORDD_LAUNCHER") == "none";
    if (!ignored) inputs.task = TaskOf(*place);
    inputs.unusable_hosts = UnusableHostsOf(*place);
    if (inputs.allocation.has_value() && options.launcher.empty())
      options.notes.insert(options.notes.end(), place->warnings.begin(), place->warnings.end());
  }
  COORDD_RETURN_IF_ERROR(TakePart(inputs, &options));
  COORDD_RETURN_IF_ERROR(UseDdlVariables(environment, &options));
  if (!options.hostfile.empty()) {
    COORDD_ASSIGN_OR_RETURN(inputs.hostfile, facts.read_file(options.hostfile));
  }
  return PlanRun(options, inputs);
}

int Fail(const absl::Status& status, int exit_status) {
  std::fputs(RefusalLine("coordrun", status.message()).c_str(), stderr);
  return exit_status;
}

int Main(int argc, char** argv) {
  RunFlags flags = ParseRunFlags(std::vector<std::string>(argv + 1, argv + argc));
  if (flags.exit) return *flags.exit;
  const Environment environment = ReadEnvironment();
  RouteGrpcLogUnlessWanted(environment);
  Clock& clock = Clock::Real();
  if (flags.agent) return RunAgent(environment, clock);
  RunOptions& options = flags.options;
  if (!flags.mpi_rank.empty() && !options.command.empty())
    return RunMpiRank({flags.mpi_rank, options.start_timeout, options.command}, environment, clock);

  const auto plan = Plan(options, environment, clock);
  if (!plan.ok()) return Fail(plan.status(), kExitUsage);
  options.np = plan->np;
  if (options.dry_run) {
    const auto text = DryRunText(options, *plan, environment);
    if (!text.ok()) return Fail(text.status(), kExitUsage);
    std::fputs(text->c_str(), stdout);
    return 0;
  }
  if (const absl::Status status = CheckCredentials(options, environment); !status.ok())
    return Fail(status, kExitUsage);
  const auto directory = MakeRunDirectory(environment, options.run_directory);
  if (!directory.ok()) return Fail(directory.status(), 1);
  RaiseFileLimit();
  const bool has_input = plan->launcher == LauncherKind::kLocal && options.first_rank == 0;
  return RunSupervised(
      *directory, [&] { return Launcher(options, *plan, *directory, environment, clock).Run(); },
      /*reads_terminal=*/has_input && isatty(STDIN_FILENO) == 1);
}

}  // namespace
}  // namespace coordd

int main(int argc, char** argv) {
  coordd::OpenStandardStreams(argv);
  return coordd::Main(argc, argv);
}
