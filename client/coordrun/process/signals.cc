#include "client/coordrun/process/signals.h"

#include <signal.h>
#include <sys/signalfd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace coordd {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};

}  // namespace

bool IsIgnored(int signal) {
  struct sigaction action {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

absl::StatusOr<OwnedFd> OpenSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : kSignals) {
    // Blocked, it would wait in the descriptor, whether it is ignored or not.
    if (!IsIgnored(signal)) sigaddset(&set, signal);
  }
  sigprocmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
  OwnedFd fd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd.valid()) return absl::UnavailableError(absl::StrCat("signalfd: ", std::strerror(errno)));
  return fd;
}

void ReadSignals(const OwnedFd& signals, const std::function<void(int signal)>& handle) {
  signalfd_siginfo received;
  while (read(signals.get(), &received, sizeof(received)) == sizeof(received)) {
    handle(static_cast<int>(received.ssi_signo));
  }
}

}  // namespace coordd
