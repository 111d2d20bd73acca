#include "client/coordrun/process/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace coordd {
namespace {

struct Pipe {
  OwnedFd read, write;
};

absl::StatusOr<Pipe> MakePipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return absl::UnavailableError(absl::StrCat("a pipe cannot be made: ", std::strerror(errno)));
  }
  return Pipe{OwnedFd(ends[0]), OwnedFd(ends[1])};
}

// Pointers into `strings`, as execve takes them.
std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& string : strings) pointers.push_back(string.data());
  pointers.push_back(nullptr);
  return pointers;
}

// What kept a child from becoming its program.
struct Failure {
  int error = 0;
  bool directory = false;
};

struct ChildEnds {
  int in, out, err;  // in: -1 for an empty one, 0 for ours
  int inherited;
  int failure;
};

// In the child; never returns. Reports through `failure`, which exec closes.
[[noreturn]] void RunChild(pid_t parent, const std::vector<char*>& arguments,
                           const std::vector<char*>& environment, const std::string& directory,
                           const ChildEnds& ends) {
  setpgid(0, 0);
  // Should coordrun be killed, whoever guards it ends everything; this covers the time until then.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);
  const bool ours = ends.in == 0 && fcntl(0, F_GETFD) >= 0;
  const int input = ends.in > 0 || ours ? ends.in : open("/dev/null", O_RDONLY);
  if (input != 0) dup2(input, 0);
  dup2(ends.out, 1);
  dup2(ends.err, 2);
  if (ends.inherited >= 0) fcntl(ends.inherited, F_SETFD, 0);
  if (ends.in <= 0 && input > 2) close(input);
  signal(SIGPIPE, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  Failure failure;
  failure.directory = !directory.empty() && chdir(directory.c_str()) != 0;
  if (!failure.directory) execvpe(arguments[0], arguments.data(), environment.data());
  failure.error = errno;
  const ssize_t ignored = write(ends.failure, &failure, sizeof(failure));
  _exit(ignored > 0 ? 127 : 126);
}

// What to do about a program that is there, or nearly; empty: it is not.
std::string Hint(const ChildRequest& request, int error) {
  const std::string& program = request.command[0];
  const bool searched = program.find('/') == std::string::npos;  // in PATH, and nowhere else
  const std::string here = searched ? absl::StrCat("./", program) : program;
  const std::string path = here[0] == '/' || request.directory.empty()
                               ? here
                               : absl::StrCat(request.directory, "/", here);
  struct stat found {};
  if (stat(path.c_str(), &found) != 0 || !S_ISREG(found.st_mode)) return "";
  if (access(path.c_str(), X_OK) != 0) {
    return absl::StrCat("; the file ", here,
                        " is not executable: expected its interpreter before it (python ", program,
                        "), or chmod +x");
  }
  if (searched) return absl::StrCat("; it is not in PATH: expected ", here);
  return error == ENOENT ? "; the interpreter in its first line is not there" : "";
}

absl::Status StartError(const ChildRequest& request, const Failure& failure) {
  if (failure.directory) {
    return absl::FailedPreconditionError(absl::StrCat("the working directory ", request.directory,
                                                      ": ", std::strerror(failure.error)));
  }
  const std::string& program = request.command[0];
  const bool is_looked_up = failure.error == ENOENT && !absl::StrContains(program, '/');
  const std::string why =
      is_looked_up ? "no folder of PATH has a program of this name" : std::strerror(failure.error);
  const std::string text =
      absl::StrCat(program, " cannot be run: ", why, Hint(request, failure.error));
  if (failure.error == ENOENT) return absl::NotFoundError(text);
  if (failure.error == EACCES) return absl::PermissionDeniedError(text);
  return absl::UnavailableError(text);
}

// Nothing: it has become its program.
std::optional<Failure> ReadFailure(int fd) {
  Failure failure;
  ssize_t got;
  do {
    got = read(fd, &failure, sizeof(failure));
  } while (got < 0 && errno == EINTR);
  if (got <= 0) return std::nullopt;
  return failure;
}

}  // namespace

absl::StatusOr<ChildProcess> ChildProcess::Start(const ChildRequest& request) {
  absl::StatusOr<Pipe> in = request.input ? MakePipe() : Pipe{};
  absl::StatusOr<Pipe> out = MakePipe();
  absl::StatusOr<Pipe> err = MakePipe();
  absl::StatusOr<Pipe> failure = MakePipe();
  for (const auto* pipe : {&in, &out, &err, &failure}) {
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
    RunChild(parent, argv, envp, request.directory,
             {.in = request.inherits_input && !request.input ? 0 : in->read.get(),
              .out = out->write.get(),
              .err = err->write.get(),
              .inherited = request.inherited_fd,
              .failure = failure->write.get()});
  }
  setpgid(pid, pid);  // whoever comes first: here, so that a signal sent at once finds the group
  for (OwnedFd* theirs : {&in->read, &out->write, &err->write, &failure->write}) theirs->Close();
  if (const auto failed = ReadFailure(failure->read.get())) {
    waitpid(pid, nullptr, 0);
    return StartError(request, *failed);
  }
  OwnedFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!pidfd.valid()) {
    const int why = errno;
    kill(-pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    return absl::UnavailableError(
        absl::StrCat("pidfd_open: ", std::strerror(why), "; Linux 5.3 or later is expected"));
  }
  for (const int ours : {in->write.get(), out->read.get(), err->read.get()}) {
    if (ours >= 0) fcntl(ours, F_SETFL, O_NONBLOCK);
  }
  return ChildProcess(pid, std::move(pidfd), std::move(in->write), std::move(out->read),
                      std::move(err->read));
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

namespace {

// Appends the decimal digits of `number` at `at`; returns the new end.
char* AppendNumber(char* at, int number) {
  char digits[12];
  int count = 0;
  do {
    digits[count++] = static_cast<char>('0' + number % 10);
    number /= 10;
  } while (number > 0);
  while (count > 0) *at++ = digits[--count];
  return at;
}

// Kills and collects the children listed in `fd`, but `spared`. Whether there was one.
bool EndListed(int fd, pid_t spared) {
  bool any = false;
  pid_t child = 0;
  char buffer[512];
  for (ssize_t got; (got = read(fd, buffer, sizeof(buffer))) > 0;) {
    for (ssize_t i = 0; i < got; ++i) {
      if (buffer[i] >= '0' && buffer[i] <= '9') {
        child = child * 10 + (buffer[i] - '0');
        continue;
      }
      if (child > 0 && child != spared) {
        any = true;
        kill(child, SIGKILL);
        waitpid(child, nullptr, WNOHANG);
      }
      child = 0;
    }
  }
  return any;
}

}  // namespace

void EndChildrenBut(pid_t spared) {
  // Of 10 ms; the killed ones' own orphans come up in the next round.
  constexpr int kRounds = 400;
  char path[64] = "/proc/self/task/";
  char* end = AppendNumber(path + std::strlen(path), getpid());
  std::memcpy(end, "/children", sizeof("/children"));
  for (int round = 0; round < kRounds; ++round) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    const bool any = EndListed(fd, spared);
    close(fd);
    if (!any) return;
    poll(nullptr, 0, 10);
  }
}

}  // namespace coordd
