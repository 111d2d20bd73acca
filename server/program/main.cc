// The program coordd: flags, signals, exit codes. Everything else is CoordServer.
#include <errno.h>
#include <malloc.h>
#include <prometheus/registry.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/clock.h"
#include "common/base/descriptor_limit.h"
#include "common/base/environment.h"
#include "common/base/log.h"
#include "common/base/memory_limit.h"
#include "common/base/refusal_line.h"
#include "common/base/standard_streams.h"
#include "common/base/version.h"
#include "common/grpc/grpc_log.h"
#include "common/grpc/tls.h"
#include "server/program/server_flags.h"
#include "server/program/service_notify.h"
#include "server/service/coord_server.h"
#include "server/service/end_watch.h"
#include "server/service/standby_pages.h"

namespace coordd {
namespace {

// 2 s are promised, whatever clients and disks do.
void ExitWithin(absl::Duration limit) {
  struct sigaction action = {};
  action.sa_handler = [](int) { _exit(kExitStopped); };
  sigaction(SIGALRM, &action, nullptr);
  itimerval timer = {};
  timer.it_value = absl::ToTimeval(limit);
  setitimer(ITIMER_REAL, &timer, nullptr);
}

// Packaged Abseil, as Debian's, looks for deadlocks at each lock of a mutex of gRPC's: a twentieth
// of what an idle job costs. Our own mutexes are others.
void TrustGrpcLocks() { absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore); }

void SayReady(const CoordServer& server, bool https, int fd) {
  const std::string listen = server.listen_address().ToString();
  const auto http = server.http_address();
  printf("coordd %s ready: grpc %s, http %s\n", kVersion, listen.c_str(),
         http.has_value()
             ? absl::StrCat(https ? "https" : "http", "://", http->ToString(), "/").c_str()
             : "off");
  fflush(stdout);
  if (fd < 0) return;
  const nlohmann::ordered_json json = {
      {"listen", listen}, {"http", http.has_value() ? http->ToString() : ""}, {"pid", getpid()}};
  const std::string line = json.dump() + "\n";
  if (write(fd, line.data(), line.size()) < 0)
    COORDD_LOG(kWarning, "--ready-fd ", fd, " cannot be written: ", std::strerror(errno));
  close(fd);
}

// systemd, or whoever else waits for it.
void TellService(const std::string& state) {
  const absl::Status told = NotifyService(ReadEnvironment(), state);
  if (!told.ok()) COORDD_LOG(kWarning, told.message());
}

// Nothing but a directory that is ours alone, as launchers make them for one run.
void RemoveOwnDirectory(const std::string& path) {
  struct stat found = {};
  if (path.empty() || lstat(path.c_str(), &found) != 0 || !S_ISDIR(found.st_mode) ||
      found.st_uid != geteuid() || (found.st_mode & 0777) != 0700)
    return;
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

// SIGUSR1: an upgrade or a move to another machine. What it takes, and somebody who has to look.
constexpr absl::Duration kResumeWithin = absl::Minutes(5);

// How soon a standby notices that nobody leads any more, beside what etcd takes.
constexpr absl::Duration kStandbyInterval = absl::Milliseconds(200);

// Null: there are none, such as beside a leader on the same machine, which has the port.
std::unique_ptr<StandbyPages> ServeStandby(const CoordServerOptions& options) {
  if (!options.http.has_value()) return nullptr;
  auto pages = StandbyPages::Start(options);
  if (pages.ok()) return *std::move(pages);
  COORDD_LOG(kInfo, "what stands by has no HTTP: ", pages.status().message());
  return nullptr;
}

// Of a standby: waits until the state can be had. CANCELLED: it was ended before.
absl::StatusOr<OpenedState> AwaitState(const ServerFlags& flags, EndWatch& watch) {
  std::string said;
  std::unique_ptr<StandbyPages> pages;
  while (true) {
    auto state = CoordServer::Open(flags.server, Clock::Real());
    const bool passes =
        absl::IsAlreadyExists(state.status()) || absl::IsUnavailable(state.status());
    if (state.ok() || !flags.standby || !passes) return state;
    const std::string why(state.status().message());
    if (said != why) {
      COORDD_LOG(kInfo, "standing by: ", why);
      TellService(absl::StrCat("READY=1\nSTATUS=stands by: ", why));  // it has started
      if (said.empty()) pages = ServeStandby(flags.server);
      if (pages != nullptr) pages->Tell(why);
    }
    said = why;
    const std::string end = watch.AwaitBefore(kStandbyInterval);
    if (!end.empty()) return absl::CancelledError(end);
  }
}

void Refuse(const absl::Status& why) {
  fputs(RefusalLine("coordd", why.message()).c_str(), stderr);
}

int Main(int argc, char** argv) {
  SaveAddressSpace();
  const auto flags = ParseServerFlags(argc, argv, ReadEnvironment());
  if (!flags.ok()) {
    Refuse(flags.status());
    fputs("(coordd --help lists the flags)\n", stderr);
    return kExitUsage;
  }
  if (flags->print.has_value()) {
    fputs(flags->print->c_str(), stdout);
    return kExitStopped;
  }
  SetLogLevel(flags->log_level);
  RaiseDescriptorLimit();
  RouteGrpcLog();
  TrustGrpcLocks();

  if (const absl::Status room = RoomToBegin(); !room.ok()) {
    Refuse(room);
    return kExitCannotListen;
  }

  // Before the first thread, so that all of them inherit it and only the watch below sees them.
  const sigset_t stop_signals = EndSignals();
  pthread_sigmask(SIG_BLOCK, &stop_signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // a file that may grow no more is an error like that of a full disk
  auto watch = EndWatch::Start(flags->end);
  if (!watch.ok()) {
    Refuse(watch.status());
    return kExitUsage;
  }

  auto state = AwaitState(*flags, *watch);
  if (absl::IsCancelled(state.status())) return kExitStopped;
  if (!state.ok()) {
    Refuse(state.status());
    return IsPassing(state.status()) || absl::IsAlreadyExists(state.status()) ? kExitState
                                                                              : kExitStateUnusable;
  }
  prometheus::Registry registry;
  auto server = CoordServer::Start(flags->server, *std::move(state), Clock::Real(), registry);
  if (!server.ok()) {
    Refuse(server.status());
    return kExitCannotListen;
  }
  SayReady(**server, flags->server.HttpHasTls(), flags->ready_fd);
  TellService(
      absl::StrCat("READY=1\nSTATUS=serves workers at ", (*server)->listen_address().ToString()));

  const std::string why = watch->Await(**server, Clock::Real());
  ExitWithin(absl::Milliseconds(1500));
  pthread_sigmask(SIG_UNBLOCK, &stop_signals, nullptr);  // a second one ends the process at once
  TellService("STOPPING=1");
  const bool lost = !(*server)->state_loss().why().ok();
  // In the second case another coordd goes on with them.
  const bool jobs_go_on = why == "SIGUSR1" || lost;
  const std::string reason = absl::StrCat(
      jobs_go_on ? "coordd makes room for another (" : "coordd is stopping (", why, ")");
  COORDD_LOG(kInfo, reason);
  if (!jobs_go_on) RemoveOwnDirectory(flags->remove_directory);
  (*server)->Stop(reason, jobs_go_on ? kResumeWithin : absl::ZeroDuration());
  return lost ? kExitState : kExitStopped;
}

}  // namespace
}  // namespace coordd

int main(int argc, char** argv) {
  coordd::OpenStandardStreams(argv);
#ifdef __GLIBC__
  // Of a million small pieces that are freed in parts, over turns, one allocation would join all.
  mallopt(M_MXFAST, 0);
#endif
  return coordd::Main(argc, argv);
}
