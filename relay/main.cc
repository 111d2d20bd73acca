// The program coordd-relay: the workers of a node speak to coordd through it, as one session.
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/clock.h"
#include "common/base/descriptor_limit.h"
#include "common/base/environment.h"
#include "common/base/log.h"
#include "common/base/refusal_line.h"
#include "common/base/standard_streams.h"
#include "common/base/status_macros.h"
#include "common/base/usage_failure.h"
#include "common/base/version.h"
#include "common/grpc/grpc_log.h"
#include "common/launch/host_identity.h"
#include "relay/relay_server.h"

namespace coordd {
namespace {

constexpr char kDescription[] =
    R"(coordd-relay: speaks to coordd for the workers of a node, in one session.

  coordd-relay --coordinator launch:29650 --listen unix:/run/user/1000/coordd-relay
Workers that find COORDD_NODE_SESSION=unix:/run/user/1000/coordd-relay go through it, and straight to coordd when it
is not there. It keeps nothing: when it ends, they go on. It serves one job, that of the first worker that comes: end it
with the job. coordrun starts one on each node (--node-sessions).
)";
constexpr char kFooter[] = R"(
Exit codes: 0 stopped by SIGTERM or SIGINT; 1 it cannot listen; 2 a flag or variable is wrong.)";
constexpr int kExitFailed = 1, kExitUsage = 2;

struct RelayFlags {
  std::string coordinator, listen, metrics, ports;
  TlsFiles tls;
  int ready_fd = -1;
  bool dies_with_parent = false;
};

absl::StatusOr<RelayServerOptions> OptionsOf(const RelayFlags& flags) {
  RelayServerOptions options;
  options.listen = flags.listen;
  options.tls = flags.tls;
  options.hostname = ThisHost("").hostname;
  for (const absl::string_view one : absl::StrSplit(flags.coordinator, ',', absl::SkipEmpty())) {
    COORDD_ASSIGN_OR_RETURN(HostPort address, ParseHostPort(std::string(one)));
    options.coordinators.push_back(std::move(address));
  }
  if (!flags.metrics.empty()) {
    options.metrics = HostPort();
    if (flags.metrics != "auto") {
      COORDD_ASSIGN_OR_RETURN(options.metrics, ParseHostPort(flags.metrics));
      if (options.metrics->host == "auto") options.metrics->host.clear();
    }
    if (!flags.ports.empty()) {
      COORDD_ASSIGN_OR_RETURN(options.ports, ParsePortRange(flags.ports));
    }
  }
  COORDD_RETURN_IF_ERROR(options.Validate());
  return options;
}

void AddFlags(CLI::App& app, RelayFlags& flags) {
  app.add_option("--coordinator", flags.coordinator,
                 "Where coordd listens: HOST:PORT[,HOST:PORT...]")
      ->envname("COORDD_ADDR")
      ->required();
  app.add_option("--listen", flags.listen, "Where workers find it: unix:/PATH")->required();
  app.add_option("--metrics", flags.metrics,
                 "Where it serves the metrics of its node's workers as one target's: HOST:PORT, or "
                 "auto; without it each worker serves its own")
      ->envname("COORDD_METRICS");
  app.add_option("--port-range", flags.ports, "Ports of which one is taken: FIRST-LAST")
      ->envname("COORDD_PORT_RANGE");
  app.add_option("--tls-ca", flags.tls.ca, "Certificate authority of coordd")
      ->envname("COORDD_TLS_CA");
  app.add_option("--tls-cert", flags.tls.cert,
                 "Certificate: a node's (coordctl certs --role node), or a worker's")
      ->envname("COORDD_TLS_CERT");
  app.add_option("--tls-key", flags.tls.key, "Its private key")->envname("COORDD_TLS_KEY");
  app.add_option("--ready-fd", flags.ready_fd, "Writes a line to it once it listens")
      ->check(OpenDescriptor());
  app.add_flag("--die-with-parent", flags.dies_with_parent, "For launchers")->group("");
}

int Serve(const RelayServerOptions& options, int ready_fd) {
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGTERM);
  sigaddset(&ends, SIGINT);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  signal(SIGPIPE, SIG_IGN);
  RaiseDescriptorLimit();
  umask(077);  // the socket is this user's alone
  auto server = RelayServer::Start(options, Clock::Real());
  if (!server.ok()) {
    fputs(RefusalLine("coordd-relay", server.status().message()).c_str(), stderr);
    return kExitFailed;
  }
  COORDD_LOG(kInfo, "relay ", kVersion, " ready: ", (*server)->Description());
  if (ready_fd >= 0) {
    if (write(ready_fd, "ready\n", 6) < 0)
      COORDD_LOG(kWarning, "--ready-fd ", ready_fd, " cannot be written: ", std::strerror(errno));
    close(ready_fd);
  }
  int which = 0;
  sigwait(&ends, &which);
  return 0;
}

int Main(int argc, char** argv) {
  RelayFlags flags;
  CLI::App app(kDescription, "coordd-relay");
  app.footer(kFooter);
  app.failure_message(UsageFailure);
  app.set_version_flag("-v,--version", absl::StrCat("coordd-relay ", kVersion));
  AddFlags(app, flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  SetLogProgram("coordd-relay");
  if (flags.dies_with_parent) prctl(PR_SET_PDEATHSIG, SIGKILL);
  RouteGrpcLogUnlessWanted(ReadEnvironment());
  const auto options = OptionsOf(flags);
  if (!options.ok()) {
    fputs(RefusalLine("coordd-relay", options.status().message()).c_str(), stderr);
    return kExitUsage;
  }
  return Serve(*options, flags.ready_fd);
}

}  // namespace
}  // namespace coordd

int main(int argc, char** argv) {
  coordd::OpenStandardStreams(argv);
  return coordd::Main(argc, argv);
}
