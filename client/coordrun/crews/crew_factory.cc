#include "client/coordrun/crews/crew_factory.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/coordrun/coordinator/relay_process.h"
#include "client/coordrun/crews/agent_crew.h"
#include "client/coordrun/crews/external_crew.h"
#include "client/coordrun/crews/local_crew.h"
#include "client/coordrun/crews/mpirun_crew.h"
#include "client/coordrun/plan/commands.h"
#include "client/coordrun/plan/thread_share.h"
#include "client/coordrun/plan/torch_variables.h"
#include "client/coordrun/process/master_port.h"
#include "client/coordrun/wire/host_look.h"
#include "common/base/named_file.h"
#include "common/base/status_macros.h"

namespace coordd {
namespace {

absl::StatusOr<std::string> Contents(const std::string& path) {
  constexpr size_t kBytesMax = 1 << 20;  // as of a certificate
  const absl::StatusOr<std::string> text = ReadNamedFile(path, kBytesMax);
  if (!text.ok()) return absl::UnavailableError(absl::StrCat(path, " ", text.status().message()));
  if (text->size() <= kBytesMax) return text;
  return absl::UnavailableError(absl::StrCat(path, " is larger than 1 MiB"));
}

// Picks where torch's rank 0 listens, another port each time; it keeps the last one.
std::function<TorchMaster()> MasterHere(const RunOptions& options, const RunPlan& plan) {
  // coordruns of other machines could not be told.
  const bool is_whole_job = options.size == 0 || options.size == plan.np;
  if (!options.torch_env || !is_whole_job) return [] { return TorchMaster{}; };
  return [port_range = options.port_range, kept = std::make_shared<std::optional<MasterPort>>()] {
    auto port = MasterPort::Reserve(port_range);
    if (!port.ok()) return TorchMaster{};  // torch says that it has none
    *kept = *std::move(port);
    return TorchMaster{.address = "127.0.0.1", .port = (*kept)->port()};
  };
}

absl::StatusOr<std::unique_ptr<Crew>> MakeLocal(const CrewInputs& in) {
  std::vector<WorkerOrder> orders;
  RunOptions options = in.options;
  if (options.metrics.empty()) options.metrics = "auto";
  const auto pick_master = MasterHere(options, in.plan);
  const TorchMaster master = pick_master();
  AgentReport here;
  LookAtCores(&here);
  const int32_t threads = options.torch_env ? ThreadsEach(here.cores(), in.plan.np) : 0;
  for (int32_t r = 0; r < in.plan.np; ++r) {
    COORDD_ASSIGN_OR_RETURN(
        Environment environment,
        EnvironmentOfWorker(options, in.coordinator.rendezvous, r, in.environment, master));
    Overlay(ThreadVariables(threads, environment), &environment);
    // That of rank 0, as with mpirun: a script behind '-', a debugger.
    orders.push_back({r, std::move(environment), /*has_input=*/options.first_rank + r == 0});
  }
  const std::string relay =
      WantsRelay(options, in.plan.np, in.plan.np) ? in.run_directory : std::string();
  auto crew =
      std::make_unique<LocalCrew>(options.command, options.directory, std::move(orders), relay);
  crew->OnRestart(
      [names = TorchNames(options), pick_master] { return MasterVariables(names, pick_master()); });
  return crew;
}

// What all agents of a run are told.
absl::StatusOr<AgentOrders> CommonOrders(const CrewInputs& in) {
  AgentOrders orders;
  const Rendezvous& rendezvous = in.coordinator.rendezvous;
  const std::vector<std::string>& command = in.options.command;
  const std::vector<std::string> torch = TorchNames(in.options);
  orders.set_protocol(kAgentProtocol);
  orders.mutable_command()->Assign(command.begin(), command.end());
  orders.set_directory(in.directory);
  orders.mutable_coordinators()->Assign(in.coordinator.addresses.begin(),
                                        in.coordinator.addresses.end());
  orders.set_marker(in.marker);
  orders.set_look(in.options.checks);
  orders.mutable_torch()->Assign(torch.begin(), torch.end());
  orders.set_port_range(in.options.port_range);
  if (torch.empty()) orders.add_unset(kTorchMarker);  // of an outer run
  orders.set_stay(in.options.max_restarts > 0 || !in.options.discovery_script.empty());
  COORDD_ASSIGN_OR_RETURN(const Environment common,
                          CommonVariables(in.options, rendezvous, in.environment));
  for (const auto& [name, value] : common) {
    if (value.empty()) orders.add_unset(name);
    if (!value.empty()) SetVariable(name, value, orders.mutable_environment());
  }
  SetVariable("COORDD_SIZE", absl::StrCat(in.plan.np), orders.mutable_environment());
  const std::pair<const char*, std::string> files[] = {{"COORDD_TOKEN_FILE", rendezvous.token_file},
                                                       {"COORDD_TLS_CA", rendezvous.tls.ca},
                                                       {"COORDD_TLS_CERT", rendezvous.tls.cert},
                                                       {"COORDD_TLS_KEY", rendezvous.tls.key},
                                                       {"", rendezvous.node_tls.cert},
                                                       {"", rendezvous.node_tls.key}};
  for (const auto& [variable, path] : files) {
    if (path.empty()) continue;
    COORDD_ASSIGN_OR_RETURN(std::string contents, Contents(path));
    v1::OrderedFile& file = *orders.add_files();
    file.set_variable(variable);
    file.set_name(path.substr(path.rfind('/') + 1));
    file.set_contents(std::move(contents));
  }
  return orders;
}

ChannelRequest SshChannel(const CrewInputs& in, const HostRanks& host, AgentOrders orders,
                          int32_t number) {
  ChannelRequest channel;
  channel.host = host.host;
  channel.command = host.here ? AgentCommand(in.self) : CommandToHost(in.options, host, in.self);
  channel.environment = in.environment;
  orders.set_number(number);
  const auto is_given = [](const auto& variable) { return variable.first == "COORDD_TOPOLOGY"; };
  const auto& given = in.options.variables;  // of -x, which win
  if (!host.topology.empty() && std::none_of(given.begin(), given.end(), is_given))
    SetVariable("COORDD_TOPOLOGY", host.topology, orders.mutable_environment());
  orders.set_relay(WantsRelay(in.options, in.plan.np, host.count));
  for (int32_t i = 0; i < host.count; ++i) {
    const int32_t rank = host.first_rank + i;
    v1::OrderedWorker& worker = *orders.add_workers();
    worker.set_index(rank);
    *worker.mutable_environment() = ToVariables(
        PlaceVariables({.rank = rank,
                        .size = std::max(in.plan.np, rank + 1),  // who comes later is beyond it
                        .local_rank = host.first_local + i,
                        .local_size = host.local_size > 0 ? host.local_size : host.count}));
    channel.workers.push_back(rank);
  }
  channel.orders = Line(orders);
  return channel;
}

absl::StatusOr<std::unique_ptr<Crew>> MakeSsh(const CrewInputs& in) {
  COORDD_ASSIGN_OR_RETURN(AgentOrders orders, CommonOrders(in));
  Environment environment = TransferredEnvironment(in.environment);
  for (const auto& [name, value] : FromVariables(orders.environment())) environment[name] = value;
  *orders.mutable_environment() = ToVariables(environment);
  AgentCrewOptions options;
  options.verbose = in.options.verbose;
  options.torch = !orders.torch().empty();
  options.np = in.plan.np;
  options.explain = [run = in.options](const ChannelRequest& request, const ProcessEnd& end,
                                       const std::vector<std::string>& said) {
    return ExplainToHost(run, request.host, end, said);
  };
  int32_t number = 0;
  for (const HostRanks& host : in.plan.hosts) {
    options.channels.push_back(SshChannel(in, host, orders, number++));
  }
  if (in.place_of != nullptr) {
    // Each agent counts the starts of its workers: their names differ from those of other agents.
    options.channel_of = [in, orders, number](int32_t worker) mutable {
      AgentOrders mine = orders;
      SetVariable("COORDD_LAUNCH_ID",
                  absl::StrCat(in.coordinator.rendezvous.launch_id, "-", number),
                  mine.mutable_environment());
      return SshChannel(in, in.place_of(worker), std::move(mine), number++);
    };
  }
  return std::make_unique<AgentCrew>(std::move(options));
}

absl::StatusOr<std::unique_ptr<Crew>> MakeSrun(const CrewInputs& in) {
  COORDD_ASSIGN_OR_RETURN(AgentOrders orders, CommonOrders(in));
  orders.set_identity(v1::AGENT_IDENTITY_SLURM);
  ChannelRequest channel;
  channel.host = "srun";
  channel.shared = true;
  channel.command = SrunCommand(in.options, in.plan, in.self);
  // Their values go through stdin; what the batch script's own place is would mislead the tasks.
  channel.environment = in.environment;
  for (const char* name : {"COORDD_RANK", "COORDD_LOCAL_RANK", "COORDD_LOCAL_SIZE"}) {
    channel.environment.erase(name);
  }
  channel.orders = Line(orders);
  channel.agents = static_cast<size_t>(in.plan.np);
  const std::string leftover = LeftoverText(in.options, in.environment);
  for (int32_t rank = 0; rank < in.plan.np; ++rank) channel.workers.push_back(rank);
  AgentCrewOptions options;
  options.channels.push_back(std::move(channel));
  options.verbose = in.options.verbose;
  options.torch = !orders.torch().empty();
  options.np = in.plan.np;
  options.explain = [leftover](const ChannelRequest& /*request*/, const ProcessEnd& end,
                               const std::vector<std::string>& said) {
    return ExplainSrun(end, said, leftover);
  };
  options.cannot_open = leftover;
  return std::make_unique<AgentCrew>(std::move(options));
}

// Without an agent: values and files of this machine. Hosts must see the run's directory.
absl::StatusOr<Environment> SharedVariables(const CrewInputs& in) {
  COORDD_ASSIGN_OR_RETURN(Environment variables,
                          CommonVariables(in.options, in.coordinator.rendezvous, in.environment));
  variables["COORDD_SIZE"] = absl::StrCat(in.plan.np);
  variables[kTorchMarker] = "";  // of an outer run
  return variables;
}

// Where the ranks of an mpirun meet (mpi_rank.h); empty: nowhere. Hosts see the run's folder,
// unless they need nothing that is in it.
absl::StatusOr<std::string> MpiFolder(const CrewInputs& in) {
  const bool needless = !in.plan.hosts.empty() && in.options.run_directory.empty() &&
                        !absl::StartsWith(in.coordinator.rendezvous.token_file, in.run_directory);
  if (TorchNames(in.options).empty() || needless) return std::string();
  std::string folder = in.run_directory + "/ranks";
  std::error_code error;
  if (!std::filesystem::create_directory(folder, error)) {
    return absl::UnavailableError(absl::StrCat(folder, " cannot be made: ", error.message()));
  }
  return folder;
}

absl::StatusOr<std::unique_ptr<Crew>> MakeMpirun(const CrewInputs& in) {
  COORDD_ASSIGN_OR_RETURN(Environment variables, SharedVariables(in));
  COORDD_ASSIGN_OR_RETURN(const std::string folder, MpiFolder(in));
  if (!folder.empty()) variables[kTorchMarker] = absl::StrJoin(TorchNames(in.options), ",");
  return std::make_unique<MpirunCrew>(in.options, in.plan,
                                      MpiRankCommand(in.options, in.plan, in.self, folder),
                                      in.environment, std::move(variables));
}

absl::StatusOr<std::unique_ptr<Crew>> MakeExternal(const CrewInputs& in) {
  COORDD_ASSIGN_OR_RETURN(Environment variables, SharedVariables(in));
  return std::make_unique<ExternalCrew>(in.options, in.plan, in.coordinator.rendezvous,
                                        std::move(variables));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Crew>> MakeCrew(const CrewInputs& inputs) {
  switch (inputs.plan.launcher) {
    case LauncherKind::kLocal:
      return MakeLocal(inputs);
    case LauncherKind::kSsh:
      return MakeSsh(inputs);
    case LauncherKind::kSrun:
      return MakeSrun(inputs);
    case LauncherKind::kMpirun:
      return MakeMpirun(inputs);
    case LauncherKind::kExternal:
      return MakeExternal(inputs);
  }
  return absl::InternalError("an unknown launcher");
}

}  // namespace coordd
