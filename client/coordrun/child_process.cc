#include "client/coordrun/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace coordd {
namespace {

struct Pipe {
  UniqueFd read, write;
};

absl::StatusOr<Pipe> MakePipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return absl::UnavailableError(absl::StrCat("a pipe cannot be made: ", std::strerror(errno)));
  }
  return Pipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

// Pointers into `strings`, as execve takes them.
std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& string : strings) pointers.push_back(string.data());
  pointers.push_back(nullptr);
  return pointers;
}

// In the child; never returns. Reports errno through `failure`, which exec closes.
[[noreturn]] void RunChild(pid_t parent, const std::vector<char*>& arguments,
                           const std::vector<char*>& environment, int out, int err, int inherited,
                           int failure) {
  setpgid(0, 0);
  // Should coordrun be killed, its guardian ends the group; this covers the time until it does.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);
  const int null = open("/dev/null", O_RDONLY);
  dup2(null, 0);
  dup2(out, 1);
  dup2(err, 2);
  if (inherited >= 0) fcntl(inherited, F_SETFD, 0);
  if (null > 2) close(null);
  signal(SIGPIPE, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execvpe(arguments[0], arguments.data(), environment.data());
  const int error = errno;
  const ssize_t ignored = write(failure, &error, sizeof(error));
  _exit(ignored > 0 ? 127 : 126);
}

absl::Status ExecError(const std::string& program, int error) {
  const std::string text = absl::StrCat(program, " cannot be run: ", std::strerror(error));
  if (error == ENOENT) return absl::NotFoundError(text);
  if (error == EACCES) return absl::PermissionDeniedError(text);
  return absl::UnavailableError(text);
}

}  // namespace

absl::StatusOr<ChildProcess> ChildProcess::Start(const ChildRequest& request) {
  absl::StatusOr<Pipe> out = MakePipe();
  absl::StatusOr<Pipe> err = MakePipe();
  absl::StatusOr<Pipe> failure = MakePipe();
  for (const auto* pipe : {&out, &err, &failure}) {
    if (!pipe->ok()) return pipe->status();
  }
  std::vector<std::string> arguments = request.command;
  std::vector<std::string> variables;
  for (const auto& [name, value] : request.environment) {
    variables.push_back(absl::StrCat(name, "=", value));
  }
  const std::vector<char*> argv = Pointers(arguments);
  const std::vector<char*> envp = Pointers(variables);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) {
    return absl::UnavailableError(absl::StrCat("fork: ", std::strerror(errno)));
  }
  if (pid == 0) {
    RunChild(parent, argv, envp, out->write.get(), err->write.get(), request.inherited_fd,
             failure->write.get());
  }
  setpgid(pid, pid);  // whoever comes first: here, so that a signal sent at once finds the group
  out->write.Close();
  err->write.Close();
  failure->write.Close();
  int error = 0;
  ssize_t got;
  do {
    got = read(failure->read.get(), &error, sizeof(error));
  } while (got < 0 && errno == EINTR);
  if (got > 0) {
    waitpid(pid, nullptr, 0);
    return ExecError(arguments[0], error);
  }
  UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!pidfd.open()) {
    const int why = errno;
    kill(-pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    return absl::UnavailableError(
        absl::StrCat("pidfd_open: ", std::strerror(why), "; Linux 5.3 or later is expected"));
  }
  fcntl(out->read.get(), F_SETFL, O_NONBLOCK);
  fcntl(err->read.get(), F_SETFL, O_NONBLOCK);
  return ChildProcess(pid, std::move(pidfd), std::move(out->read), std::move(err->read));
}

void ChildProcess::Signal(int signal) const {
  // The group keeps its number until the process is reaped, so that no stranger can be hit.
  if (!reaped_) kill(-pid_, signal);
}

std::optional<ProcessEnd> ChildProcess::Reap() {
  siginfo_t found{};
  if (reaped_ || waitid(P_PID, static_cast<id_t>(pid_), &found, WEXITED | WNOHANG | WNOWAIT) != 0 ||
      found.si_pid != pid_) {
    return std::nullopt;
  }
  kill(-pid_, SIGKILL);
  int status = 0;
  waitpid(pid_, &status, 0);
  reaped_ = true;
  if (WIFSIGNALED(status)) return ProcessEnd{.code = 0, .signal = WTERMSIG(status)};
  return ProcessEnd{.code = WEXITSTATUS(status), .signal = 0};
}

void AdoptOrphans() { prctl(PR_SET_CHILD_SUBREAPER, 1); }

void EndChildrenBut(pid_t spared) {
  constexpr int kRounds = 100;  // of 10 ms; the killed one's own orphans come up in the next round
  for (int round = 0; round < kRounds; ++round) {
    std::ifstream listing(absl::StrCat("/proc/self/task/", getpid(), "/children"));
    bool any = false;
    for (pid_t child = 0; listing >> child;) {
      if (child == spared) continue;
      any = true;
      kill(child, SIGKILL);
      waitpid(child, nullptr, WNOHANG);
    }
    if (!any) return;
    poll(nullptr, 0, 10);
  }
}

}  // namespace coordd
