#include "server/service/end_watch.h"

#include <poll.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"

namespace coordd {

namespace {

bool HasTerminal() {
  return isatty(STDIN_FILENO) == 1 || isatty(STDOUT_FILENO) == 1 || isatty(STDERR_FILENO) == 1;
}

}  // namespace

sigset_t EndSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2}) sigaddset(&signals, signal);
  return signals;
}

absl::StatusOr<EndWatch> EndWatch::Start(const EndWatchOptions& options) {
  const sigset_t set = EndSignals();
  const int signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  if (signals < 0)
    return absl::UnavailableError(absl::StrCat("no signalfd: ", std::strerror(errno)));
  int owner = -1;
  if (options.owner > 0) {
    owner = static_cast<int>(syscall(SYS_pidfd_open, options.owner, 0));
    if (owner < 0) {
      const int error = errno;
      close(signals);
      return absl::NotFoundError(
          absl::StrCat("--exit-with ", options.owner,
                       ": this process cannot be watched: ", std::strerror(error)));
    }
  }
  return EndWatch(options, signals, owner);
}

EndWatch::EndWatch(EndWatch&& other) noexcept
    : options_(other.options_),
      signals_(std::exchange(other.signals_, -1)),
      owner_(std::exchange(other.owner_, -1)),
      owner_gone_(other.owner_gone_) {}

EndWatch::~EndWatch() {
  if (signals_ >= 0) close(signals_);
  if (owner_ >= 0) close(owner_);
}

std::string EndWatch::ReadSignal() {
  signalfd_siginfo info = {};
  if (read(signals_, &info, sizeof(info)) != static_cast<ssize_t>(sizeof(info))) return "";
  if (info.ssi_signo == SIGHUP && !HasTerminal()) {
    reload_ = true;
    return "";
  }
  if (info.ssi_signo != SIGUSR2)
    return absl::StrCat("SIG", sigabbrev_np(static_cast<int>(info.ssi_signo)));
  if (options_.owner > 0 && info.ssi_pid == static_cast<uint32_t>(options_.owner))
    owner_gone_ = true;
  return "";
}

std::string EndWatch::AwaitBefore(absl::Duration time) {
  pollfd waiting[] = {{.fd = signals_, .events = POLLIN, .revents = 0},
                      {.fd = owner_gone_ ? -1 : owner_, .events = POLLIN, .revents = 0}};
  poll(waiting, 2, static_cast<int>(absl::ToInt64Milliseconds(time)));
  std::string signal = waiting[0].revents != 0 ? ReadSignal() : "";
  if (waiting[1].revents != 0) owner_gone_ = true;
  return signal.empty() && owner_gone_ ? "the process that started it has ended" : signal;
}

std::string EndWatch::Await(CoordServer& server, Clock& clock) {
  EndRule rule(options_.rule, clock.Now());
  while (true) {
    const absl::Time now = clock.Now();
    if (std::string reason = rule.Look(now, server.sessions(), owner_gone_); !reason.empty())
      return reason;
    const absl::Time next = rule.NextLook();
    const int timeout_ms =
        next == absl::InfiniteFuture()
            ? -1
            : static_cast<int>(std::max<int64_t>(0, absl::ToInt64Milliseconds(next - now)) + 1);
    pollfd waiting[] = {{.fd = signals_, .events = POLLIN, .revents = 0},
                        {.fd = owner_gone_ ? -1 : owner_, .events = POLLIN, .revents = 0},
                        {.fd = server.state_loss().fd(), .events = POLLIN, .revents = 0}};
    if (poll(waiting, 3, timeout_ms) < 0) continue;  // EINTR
    if (waiting[0].revents != 0) {
      if (std::string signal = ReadSignal(); !signal.empty()) return signal;
      if (std::exchange(reload_, false)) server.Reload();
    }
    if (waiting[1].revents != 0) owner_gone_ = true;
    if (waiting[2].revents != 0) return std::string(server.state_loss().why().message());
  }
}

}  // namespace coordd
