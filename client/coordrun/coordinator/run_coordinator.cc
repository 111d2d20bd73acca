#include "client/coordrun/coordinator/run_coordinator.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "client/coordrun/plan/launch_address.h"
#include "client/coordrun/plan/program_name.h"
#include "client/coordrun/plan/worker_environment.h"
#include "client/coordrun/process/run_directory.h"
#include "common/base/identity.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"
#include "common/base/token_file.h"
#include "common/grpc/certs.h"
#include "common/grpc/coordinator_probe.h"
#include "common/grpc/own_certificate.h"
#include "common/net/address.h"
#include "common/net/own_address.h"

namespace coordd {
namespace {

// Against hangs only, at least: on a machine that is busy with other things, coordd may take many
// seconds to load its libraries and open its state.
constexpr absl::Duration kStartWithin = absl::Seconds(60);

absl::Time StartBy(const RunOptions& options, Clock& clock) {
  return clock.Now() + std::max(kStartWithin, options.start_timeout);
}

TlsFiles TlsOf(const RunOptions& options, const Environment& environment) {
  if (options.coordinator_tls.enabled()) return options.coordinator_tls;
  return {.cert = Variable(environment, "COORDD_TLS_CERT"),
          .key = Variable(environment, "COORDD_TLS_KEY"),
          .ca = Variable(environment, "COORDD_TLS_CA")};
}

// What answers does so at once.
constexpr absl::Duration kProbeWithin = absl::Seconds(2);
// So that no two runs are taken for one another.
constexpr int kLaunchIdBytes = 8;
// The longest run that anybody has told of, and half as much. The authority is this run's alone,
// and its key is gone at once.
constexpr absl::Duration kCertificatesLast = absl::Hours(24 * 90);

absl::Status UseNamed(const RunOptions& options, const RunPlan& plan, const std::string& directory,
                      const Environment& environment, Rendezvous* rendezvous) {
  rendezvous->address = options.coordinator;
  rendezvous->tls = TlsOf(options, environment);
  rendezvous->launcher_tls = rendezvous->tls;
  if (rendezvous->token_file.empty()) {
    rendezvous->token_file = Variable(environment, "COORDD_TOKEN_FILE");
  }
  // Workers of other coordruns would have to know a token that is made here.
  const bool all_here = options.size == 0 || options.size == plan.np;
  if (rendezvous->token_file.empty() && all_here) {
    COORDD_ASSIGN_OR_RETURN(rendezvous->token_file, WriteToken(directory));
  }
  return absl::OkStatus();
}

// Of what ssh expands itself (~, %d) only ssh knows what it is.
absl::Status CheckIdentity(const std::string& file) {
  const bool expands = !file.empty() && (file[0] == '~' || file.find('%') != std::string::npos);
  if (file.empty() || expands || access(file.c_str(), R_OK) == 0) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("--ssh-identity-file is ", file,
                                          ", which cannot be read (", std::strerror(errno),
                                          "): expected the file of a private key"));
}

// Addresses first, since only they are tried by agents; the names are for the certificate.
absl::StatusOr<std::vector<std::string>> ServerNames(const RunOptions& options,
                                                     const std::string& listen_host) {
  if (listen_host != "0.0.0.0" && listen_host != "::") return std::vector<std::string>{listen_host};
  return OwnAddresses(options.networks);
}

// That of workers is good for all jobs of this coordd, which has no others: a program may make more
// than one (torch's groups each are).
CertOptions CertificatesOfRun(const std::vector<std::string>& addresses,
                              const Environment& environment) {
  const std::string user = NameFrom(Variable(environment, "USER"));
  CertOptions certs;
  certs.server_names = addresses;
  for (const std::string& name : OwnNames()) certs.server_names.push_back(name);
  certs.lifetime = kCertificatesLast;
  certs.clients = {{Role::kWorker, kAnyName},
                   {Role::kNode, kAnyName},
                   {Role::kLauncher, user},
                   {Role::kOperator, user}};
  return certs;
}

// The coordd of all pods, in the first: with the certificate and the token that all of them have.
absl::Status StartForPods(const RunOptions& options, const std::string& directory,
                          const Environment& environment, Clock& clock, RunCoordinator* result) {
  Rendezvous& rendezvous = result->rendezvous;
  if (rendezvous.token_file.empty())
    rendezvous.token_file = Variable(environment, "COORDD_TOKEN_FILE");
  rendezvous.address = options.pods.address;
  if (options.tls) rendezvous.tls = rendezvous.launcher_tls = TlsOf(options, environment);
  result->setup = {
      .listen = options.listen,
      .http = options.http,
      .store =
          CoorddArgument(options, "--store").value_or(absl::StrCat("sqlite:", directory, "/state")),
      .tls = rendezvous.tls};
  COORDD_ASSIGN_OR_RETURN(result->process, StartCoordinator(options, result->setup, environment,
                                                            StartBy(options, clock), clock));
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckCredentials(const RunOptions& options, const Environment& environment) {
  COORDD_RETURN_IF_ERROR(CheckVariables(options, environment));
  COORDD_RETURN_IF_ERROR(CheckIdentity(options.ssh_identity));
  // Also where nobody has to reach this machine: a name that is written wrong is said at once.
  if (!options.networks.empty()) COORDD_RETURN_IF_ERROR(OwnAddresses(options.networks).status());
  COORDD_RETURN_IF_ERROR(CheckJobName("COORDD_JOB_ID", JobName(options, environment)));
  const bool shared = !options.coordinator.empty() || options.pods.take_part();
  if (shared && options.tls)
    COORDD_RETURN_IF_ERROR(CheckOwnCertificate(TlsOf(options, environment), TlsSide::kClient));
  if (!options.token_file.empty()) return CheckTokenFile("--token-file", options.token_file);
  const std::string variable = Variable(environment, "COORDD_TOKEN_FILE");
  if (!shared || variable.empty()) return absl::OkStatus();
  return CheckTokenFile("COORDD_TOKEN_FILE", variable);
}

std::string JobName(const RunOptions& options, const Environment& environment) {
  std::string job = options.job;
  const bool shared = !options.coordinator.empty() || options.pods.take_part();
  if (job.empty() && shared) job = Variable(environment, "COORDD_JOB_ID");
  return job.empty() ? JobNameFrom(ProgramName(options.command)) : job;
}

absl::StatusOr<std::string> ListenAddress(const RunOptions& options, LauncherKind launcher) {
  if (!options.listen.empty()) return options.listen;
  const bool local = launcher == LauncherKind::kLocal;
  const std::string loopback = LoopbackAddress();
  if (local) return HostPort{loopback, 0}.ToString();
  return std::string(loopback == "::1" ? "[::]:0" : "0.0.0.0:0");
}

absl::Status CheckNamed(const Rendezvous& rendezvous, Clock& clock) {
  const absl::StatusOr<HostPort> address = ParseHostPort(rendezvous.address);
  if (!address.ok()) return absl::OkStatus();  // RunOptions::Validate has said so
  const absl::Status found = ProbeCoordinator(*address, rendezvous.tls, kProbeWithin, clock);
  return absl::IsFailedPrecondition(found) || absl::IsUnauthenticated(found) ? found
                                                                             : absl::OkStatus();
}

absl::StatusOr<RunCoordinator> SetUpCoordinator(const RunOptions& options, const RunPlan& plan,
                                                const std::string& directory,
                                                const Environment& environment, Clock& clock) {
  RunCoordinator result;
  Rendezvous& rendezvous = result.rendezvous;
  rendezvous.job = JobName(options, environment);
  rendezvous.token_file = options.token_file;
  const bool sees_ends = plan.launcher == LauncherKind::kLocal ||
                         plan.launcher == LauncherKind::kSsh ||
                         plan.launcher == LauncherKind::kSrun;
  if (sees_ends) rendezvous.launch_id = SecretHex(kLaunchIdBytes);
  if (!options.coordinator.empty()) {
    COORDD_RETURN_IF_ERROR(UseNamed(options, plan, directory, environment, &rendezvous));
    return result;
  }
  if (options.pods.take_part()) {
    COORDD_RETURN_IF_ERROR(StartForPods(options, directory, environment, clock, &result));
    return result;
  }
  if (rendezvous.token_file.empty()) {
    COORDD_ASSIGN_OR_RETURN(rendezvous.token_file, WriteToken(directory));
  }
  COORDD_ASSIGN_OR_RETURN(const std::string listen, ListenAddress(options, plan.launcher));
  const std::string listen_host = ParseHostPort(listen)->host;
  COORDD_ASSIGN_OR_RETURN(const std::vector<std::string> addresses,
                          ServerNames(options, listen_host));
  CoordinatorSetup& setup = result.setup;
  setup.listen = listen;
  setup.http = options.http;
  if (setup.http == RunOptions().http) setup.http = HostPort{LoopbackAddress(), 0}.ToString();
  setup.store =
      CoorddArgument(options, "--store").value_or(absl::StrCat("sqlite:", directory, "/state"));
  if (options.tls) {
    const std::string certificates = directory + "/tls";
    COORDD_RETURN_IF_ERROR(
        MakeCertificates(certificates, CertificatesOfRun(addresses, environment)));
    unlink((certificates + "/ca.key").c_str());  // nothing more is to be signed in this run
    setup.tls = ServerTlsFiles(certificates);
    rendezvous.tls = WorkerTlsFiles(certificates);
    rendezvous.launcher_tls = RoleTlsFiles(certificates, Role::kLauncher);
    rendezvous.node_tls = RoleTlsFiles(certificates, Role::kNode);
  }
  auto started = StartCoordinator(options, setup, environment, StartBy(options, clock), clock);
  if (absl::IsUnavailable(started.status())) {
    // State that is on no disk of this machine (the directory is on a network file system) cannot
    // be trusted: then the run does not survive its coordd.
    setup.store = "memory";
    started = StartCoordinator(options, setup, environment, StartBy(options, clock), clock);
  }
  COORDD_RETURN_IF_ERROR(started.status());
  result.process = *std::move(started);
  setup.listen = result.process->addresses.listen;
  if (!result.process->addresses.http.empty()) setup.http = result.process->addresses.http;
  COORDD_ASSIGN_OR_RETURN(HostPort reached, ParseHostPort(result.process->addresses.listen));
  reached.host = ReachableHere(reached.host);
  rendezvous.address = reached.ToString();
  if (plan.launcher == LauncherKind::kLocal) return result;
  const uint16_t port = ParseHostPort(rendezvous.address)->port;
  for (const std::string& address : addresses) {
    result.addresses.push_back(HostPort{address, port}.ToString());
  }
  if (!result.addresses.empty()) rendezvous.address = result.addresses[0];
  return result;
}

absl::Status RestartCoordinator(const RunOptions& options, const Environment& environment,
                                Clock& clock, RunCoordinator* coordinator) {
  COORDD_ASSIGN_OR_RETURN(
      CoordinatorProcess process,
      StartCoordinator(options, coordinator->setup, environment, StartBy(options, clock), clock));
  coordinator->process = std::move(process);
  return absl::OkStatus();
}

}  // namespace coordd
