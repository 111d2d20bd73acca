#include "client/coordrun/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "client/coordrun/child_process.h"
#include "client/coordrun/run_state.h"

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

}  // namespace

int RunSupervised(const std::string& directory, const std::function<int()>& body) {
  AdoptOrphans();
  sigset_t set, before;
  sigemptyset(&set);
  for (const int signal : kPassedOn) sigaddset(&set, signal);
  sigaddset(&set, SIGCHLD);
  sigprocmask(SIG_BLOCK, &set, &before);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) {
    // A group of its own: what a terminal sends to the parent's comes once, from the parent.
    setpgid(0, 0);
    sigprocmask(SIG_SETMASK, &before, nullptr);
    WatchParent(parent, directory);
    AdoptOrphans();
    std::exit(body());
  }
  int status = 1 << 8;
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
