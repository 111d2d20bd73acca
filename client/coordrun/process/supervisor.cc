#include "client/coordrun/process/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "client/coordrun/process/child_process.h"
#include "client/coordrun/process/process_end.h"
#include "client/coordrun/process/signals.h"

namespace coordd {
namespace {

constexpr int kPassedOn[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCONT, SIGWINCH};
// The kernel sends it to the child when the parent dies; nothing else uses it.
constexpr int kParentDied = SIGIO;

// For the signal handler, which may not allocate. Written before the handler is installed.
char g_directory[4096];

// In the child, in the middle of whatever it was doing (it may be stuck in a write that nobody
// reads): async-signal-safe to the end.
[[noreturn]] void EndAfterParent(int /*signal*/) {
  // The kernel may choose a thread of gRPC's. The main one would go on meanwhile, see its workers
  // end and exit before the directory is removed: it has to do this itself.
  if (syscall(SYS_gettid) != getpid()) {
    syscall(SYS_tgkill, getpid(), getpid(), kParentDied);
    while (true) pause();
  }
  EndChildrenBut(-1);
  if (g_directory[0] != '\0') {
    char rm[] = "rm", recursive[] = "-rf", end[] = "--";
    char* const arguments[] = {rm, recursive, end, g_directory, nullptr};
    execv("/bin/rm", arguments);
  }
  _exit(128 + SIGKILL);
}

void WatchParent(pid_t parent, const std::string& directory) {
  if (directory.size() < sizeof(g_directory)) std::strcpy(g_directory, directory.c_str());
  struct sigaction action {};
  action.sa_handler = EndAfterParent;
  sigfillset(&action.sa_mask);
  sigaction(kParentDied, &action, nullptr);
  prctl(PR_SET_PDEATHSIG, kParentDied);
  if (getppid() != parent) EndAfterParent(kParentDied);
}

// Until `child` has ended; signals of `set` wait in the kernel meanwhile.
int AwaitEnd(pid_t child, const sigset_t& set) {
  int status = 0;
  while (true) {
    const pid_t ended = waitpid(child, &status, WNOHANG);
    if (ended == child) return status;
    if (ended < 0 && errno == ECHILD) return 0;
    int signal = 0;
    if (sigwait(&set, &signal) != 0 || signal == SIGCHLD) continue;
    kill(child, signal);
  }
}

// Ends with the terminal, with whoever reads `to`, or with its parent.
[[noreturn]] void PassOnTerminal(pid_t parent, int to, const sigset_t& mask) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(0);
  prctl(PR_SET_NAME, "coordd-input");
  // What ends the run comes to the parent, which ends this process, too.
  for (const int signal_number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2})
    signal(signal_number, SIG_IGN);
  sigprocmask(SIG_SETMASK, &mask, nullptr);
  char buffer[4096];
  ssize_t got;
  while ((got = read(STDIN_FILENO, buffer, sizeof(buffer))) > 0 || (got < 0 && errno == EINTR)) {
    for (ssize_t done = 0, n = 0; done < got; done += n) {
      n = write(to, buffer + done, static_cast<size_t>(got - done));
      if (n < 0) _exit(0);
    }
  }
  _exit(0);
}

// What it reads is at the descriptor that is returned; -1: it cannot be had.
int BeginPassingOn(const sigset_t& mask) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return -1;
  const pid_t parent = getpid();
  const pid_t reader = fork();
  if (reader == 0) PassOnTerminal(parent, ends[1], mask);
  close(ends[1]);
  return ends[0];
}

}  // namespace

int RunSupervised(const std::string& directory, const std::function<int()>& body,
                  bool reads_terminal) {
  AdoptOrphans();
  sigset_t set, before;
  sigemptyset(&set);
  for (const int signal : kPassedOn) {
    if (!IsIgnored(signal)) sigaddset(&set, signal);
  }
  sigaddset(&set, SIGCHLD);
  sigprocmask(SIG_BLOCK, &set, &before);
  const int terminal = reads_terminal ? BeginPassingOn(before) : -1;
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) {
    if (terminal >= 0) dup2(terminal, STDIN_FILENO);
    // A group of its own: what a terminal sends to the parent's comes once, from the parent.
    setpgid(0, 0);
    sigprocmask(SIG_SETMASK, &before, nullptr);
    WatchParent(parent, directory);
    AdoptOrphans();
    std::exit(body());
  }
  int status = 1 << 8;
  if (terminal >= 0) close(terminal);
  if (child > 0) {
    setpgid(child, child);
    prctl(PR_SET_NAME, "coordd-guard");
    status = AwaitEnd(child, set);
  } else {
    std::perror("coordrun: fork");
  }
  EndChildrenBut(-1);
  std::error_code error;  // there is nobody left to tell
  if (!directory.empty()) std::filesystem::remove_all(directory, error);
  if (!WIFSIGNALED(status)) return WEXITSTATUS(status);
  std::fprintf(stderr, "coordrun: was killed by %s; what it had started has been ended\n",
               SignalName(WTERMSIG(status)).c_str());
  return 128 + WTERMSIG(status);
}

}  // namespace coordd
