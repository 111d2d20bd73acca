#include "client/coordrun/program/dry_run.h"

#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/coordrun/coordinator/coordinator_process.h"
#include "client/coordrun/coordinator/run_coordinator.h"
#include "client/coordrun/crews/external_crew.h"
#include "client/coordrun/plan/commands.h"
#include "client/coordrun/plan/torch_variables.h"
#include "client/coordrun/plan/worker_environment.h"
#include "common/base/status_macros.h"
#include "common/grpc/certs.h"

namespace coordd {
namespace {

constexpr char kDirectory[] = "RUN_DIR";

std::string RanksText(int32_t first, int32_t count) {
  return count == 1 ? absl::StrCat("rank ", first)
                    : absl::StrCat("ranks ", first, " to ", first + count - 1);
}

std::string WithVariables(const Environment& variables, const std::vector<std::string>& command) {
  std::string text = "env";
  for (const auto& [name, value] : variables) {
    if (!value.empty()) absl::StrAppend(&text, " ", name, "=", Quoted(value));
  }
  return absl::StrCat(text, " ", Quoted(command));
}

struct Picture {
  const RunOptions& options;
  const RunPlan& plan;
  Environment common;
  std::string self;
  std::string directory;  // the workers'
};

// As far as it is known before anything runs.
Environment TorchPicture(const Picture& in, int32_t worker, int32_t local_rank, int32_t count) {
  const bool is_whole_job = in.options.size == 0 || in.options.size == in.plan.np;
  const bool local = in.plan.launcher == LauncherKind::kLocal;
  int32_t group = in.options.first_rank / in.plan.np;
  for (size_t i = 0; i < in.plan.hosts.size(); ++i)
    if (in.plan.hosts[i].first_rank <= worker) group = static_cast<int32_t>(i);
  Environment variables =
      TorchVariables(TorchNames(in.options),
                     {.rank = in.options.first_rank + worker,
                      .size = in.options.size == 0 ? in.plan.np : in.options.size,
                      .local_rank = local_rank,
                      .local_size = count,
                      .group_rank = group},
                     {.address = local ? "127.0.0.1" : "ADDRESS",
                      .port = static_cast<uint16_t>(is_whole_job ? 1 : 0)});
  if (const auto port = variables.find("MASTER_PORT"); port != variables.end())
    port->second = "PORT";
  return variables;
}

std::string WorkersText(const Picture& in, int32_t first, int32_t count, const char* indent) {
  std::string text;
  for (int32_t i = 0; i < count; ++i) {
    Environment variables = in.common;
    const int32_t size = in.options.size == 0 ? in.plan.np : in.options.size;
    for (const auto& [name, value] : PlaceVariables({.rank = in.options.first_rank + first + i,
                                     .size = size,
                                     .local_rank = i,
                                     .local_size = count})) {
      variables[name] = value;
    }
    for (const auto& [name, value] : TorchPicture(in, first + i, i, count)) variables[name] = value;
    absl::StrAppend(&text, indent, WithVariables(variables, in.options.command), "\n");
  }
  return text;
}

std::string SshText(const Picture& in) {
  std::string text;
  for (const HostRanks& host : in.plan.hosts) {
    Picture there = in;
    if (!host.topology.empty()) there.common.insert({"COORDD_TOPOLOGY", host.topology});
    absl::StrAppend(
        &text, "# ", host.here ? "this machine" : absl::StrCat("host ", host.host), ": ",
        RanksText(host.first_rank, host.count), "\n",
        Quoted(host.here ? AgentCommand(in.self) : CommandToHost(in.options, host, in.self)),
        "\n# which gets its orders, the environment and the secrets on stdin, and starts in ",
        in.directory, "\n", WorkersText(there, host.first_rank, host.count, "#   "));
  }
  return text;
}

std::string SrunText(const Picture& in) {
  Environment variables = in.common;
  variables["COORDD_SIZE"] = absl::StrCat(in.plan.np);
  variables["COORDD_RANK"] = "SLURM_PROCID";
  variables["COORDD_LOCAL_RANK"] = "SLURM_LOCALID";
  return absl::StrCat("# ", RanksText(0, in.plan.np), ": a Slurm step\n",
                      Quoted(SrunCommand(in.options, in.plan, in.self)),
                      "\n# each task gets its orders and the secrets on stdin, and starts\n#   ",
                      WithVariables(variables, in.options.command), "\n");
}

std::string MpirunText(const Picture& in) {
  std::vector<std::string> names;
  std::string exports;
  Environment variables = in.common;
  variables["COORDD_SIZE"] = absl::StrCat(in.plan.np);
  const std::vector<std::string> torch = TorchNames(in.options);
  if (!torch.empty()) variables[kTorchMarker] = absl::StrJoin(torch, ",");
  const std::string folder = torch.empty() ? "" : absl::StrCat(kDirectory, "/ranks");
  for (const auto& [name, value] : variables) {
    if (value.empty()) continue;
    names.push_back(name);
    absl::StrAppend(&exports, "export ", name, "=", Quoted(value), "\n");
  }
  return absl::StrCat("# ", RanksText(0, in.plan.np),
                      ": with Open MPI (MPICH's mpirun gets the same in its spelling)\n", exports,
                      Quoted(MpirunCommand(in.options, in.plan, MpiLibrary::kOpenMpi, names,
                                           MpiRankCommand(in.options, in.plan, in.self, folder))),
                      "\n");
}

std::string WorkersOf(const Picture& in) {
  switch (in.plan.launcher) {
    case LauncherKind::kLocal:
      return absl::StrCat("# ", RanksText(in.options.first_rank, in.plan.np), " on this machine\n",
                          WorkersText(in, 0, in.plan.np, ""));
    case LauncherKind::kSsh:
      return SshText(in);
    case LauncherKind::kSrun:
      return SrunText(in);
    case LauncherKind::kMpirun:
      return MpirunText(in);
    case LauncherKind::kExternal: {
      Environment variables = in.common;
      variables["COORDD_SIZE"] = absl::StrCat(in.plan.np);
      return absl::StrCat(ExternalInstructions(in.options, in.plan.np, variables), "\n");
    }
  }
  return "";
}

}  // namespace

absl::StatusOr<std::string> DryRunText(const RunOptions& options, const RunPlan& plan,
                                       const Environment& environment) {
  std::string text =
      absl::StrCat("# ", plan.np, plan.np == 1 ? " worker" : " workers", ", launcher ",
                   LauncherName(options, plan), ": ", plan.reason, "\n");
  Rendezvous rendezvous;
  rendezvous.job = JobName(options, environment);
  rendezvous.token_file =
      options.token_file.empty() ? absl::StrCat(kDirectory, "/token") : options.token_file;
  rendezvous.address = options.coordinator;
  rendezvous.tls = options.coordinator_tls;
  if (options.coordinator.empty()) {
    COORDD_ASSIGN_OR_RETURN(const std::string listen, ListenAddress(options, plan.launcher));
    const std::string certificates = absl::StrCat(kDirectory, "/tls");
    const TlsFiles tls = options.tls ? ServerTlsFiles(certificates) : TlsFiles{};
    if (options.tls) rendezvous.tls = WorkerTlsFiles(certificates);
    std::vector<std::string> command =
        CoordinatorCommand(CoordinatorProgram(), options,
                           {.listen = listen,
                            .http = options.http,
                            .store = absl::StrCat("sqlite:", kDirectory, "/state"),
                            .tls = tls},
                           /*ready_fd=*/3);
    absl::StrAppend(&text, "# coordd on this machine, with certificates for this run\n",
                    Quoted(command), "\n");
    rendezvous.address = plan.launcher == LauncherKind::kLocal ? "127.0.0.1:PORT" : "ADDRESS:PORT";
  }
  std::error_code error;
  RunOptions shown = options;
  if (shown.metrics.empty() && plan.launcher == LauncherKind::kLocal) shown.metrics = "auto";
  COORDD_ASSIGN_OR_RETURN(Environment common, CommonVariables(shown, rendezvous, environment));
  Picture picture{options, plan, std::move(common),
                  std::filesystem::read_symlink("/proc/self/exe", error).string(),
                  options.directory.empty() ? std::filesystem::current_path(error).string()
                                            : options.directory};
  return absl::StrCat(text, WorkersOf(picture));
}

}  // namespace coordd
