#include "worker/coordinator/coordinator_child.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/owned_fd.h"
#include "common/base/status_macros.h"
#include "common/net/own_address.h"

extern char** environ;

namespace coordd {
namespace {

constexpr int kReadyFd = 3;  // in the child
constexpr size_t kMaxReadyBytes = 4096;
// A coordd whose first worker never comes, because its own parent hangs before it joins, or whose
// job has ended while the program goes on.
constexpr char kIdle[] = "60s";

// The folder of the file that this function's code is in: libcoordd.so's, or the program's.
std::string OwnFolder() {
  Dl_info info = {};
  if (dladdr(reinterpret_cast<void*>(&OwnFolder), &info) == 0 || info.dli_fname == nullptr)
    return "";
  std::error_code error;
  const auto path = std::filesystem::canonical(info.dli_fname, error);
  return error ? "" : path.parent_path().string();
}

std::string ProgramFolder() {
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "" : path.parent_path().string();
}

bool IsProgram(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error) && access(path.c_str(), X_OK) == 0;
}

std::vector<std::string> CommandOf(const CoordinatorChildOptions& options) {
  std::vector<std::string> command = {options.program,
                                      "--listen",
                                      options.listen.ToString(),
                                      "--http",
                                      HostPort{LoopbackAddress(), 0}.ToString(),
                                      "--ready-fd",
                                      absl::StrCat(kReadyFd),
                                      "--store",
                                      "memory",
                                      "--exit-with",
                                      absl::StrCat(getpid()),
                                      "--exit-when-idle",
                                      kIdle,
                                      "--remove-directory",
                                      options.directory,
                                      "--tls-cert",
                                      options.tls.cert,
                                      "--tls-key",
                                      options.tls.key,
                                      "--tls-ca",
                                      options.tls.ca,
                                      "--log-level",
                                      "warning"};
  if (options.ports.first != 0) {
    command.push_back("--port-range");
    command.push_back(options.ports.ToString());
  }
  return command;
}

// Safe in a process with threads, unlike fork() and then code of our own.
absl::StatusOr<pid_t> Spawn(std::vector<std::string> command, int ready) {
  std::vector<char*> arguments;
  for (std::string& argument : command) arguments.push_back(argument.data());
  arguments.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, ready, kReadyFd);
  // Whatever else the program has open must not stay open through coordd.
  posix_spawn_file_actions_addclosefrom_np(&actions, kReadyFd + 1);

  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none, defaults;
  sigemptyset(&none);
  sigfillset(&defaults);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  pid_t pid = 0;
  const int error =
      posix_spawn(&pid, arguments[0], &actions, &attributes, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error == 0) return pid;
  return absl::UnavailableError(
      absl::StrCat(command[0], " cannot be started: ", std::strerror(error)));
}

// Until `fd` can be read, or `deadline`: false then.
bool AwaitReadable(int fd, absl::Time deadline, Clock& clock) {
  while (true) {
    const absl::Duration left = deadline - clock.Now();
    if (left <= absl::ZeroDuration()) return false;
    pollfd waiting = {.fd = fd, .events = POLLIN, .revents = 0};
    const int n = poll(&waiting, 1, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1);
    if (n > 0) return true;
    if (n < 0 && errno != EINTR) return false;
  }
}

}  // namespace

absl::StatusOr<std::string> FindCoordinatorProgram(const Environment& environment) {
  std::vector<std::string> tried;
  for (const std::string& folder : {OwnFolder(), ProgramFolder()}) {
    if (folder.empty()) continue;
    // lib/, lib/x86_64-linux-gnu/, a Python package, and the programs' own folder.
    for (const char* relative : {"/coordd", "/../bin/coordd", "/../../bin/coordd"})
      tried.push_back(folder + relative);
  }
  if (const auto path = environment.find("PATH"); path != environment.end()) {
    for (absl::string_view folder : absl::StrSplit(path->second, ':', absl::SkipEmpty()))
      tried.push_back(absl::StrCat(folder, "/coordd"));
  }
  for (const std::string& path : tried)
    if (IsProgram(path)) return path;
  return absl::NotFoundError(
      absl::StrCat("no program coordd beside ", OwnFolder().empty() ? "this library" : OwnFolder(),
                   " or in PATH; install it, or start one elsewhere and set COORDD_ADDR"));
}

absl::StatusOr<std::unique_ptr<CoordinatorChild>> CoordinatorChild::Start(
    const CoordinatorChildOptions& options, absl::Time deadline, Clock& clock) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    return absl::UnavailableError(absl::StrCat("no pipe: ", std::strerror(errno)));
  OwnedFd ready(ends[0]), theirs(ends[1]);
  // dup2 onto itself would leave it to be closed by exec.
  if (theirs.get() == kReadyFd) theirs = OwnedFd(fcntl(kReadyFd, F_DUPFD_CLOEXEC, kReadyFd + 1));
  COORDD_ASSIGN_OR_RETURN(const pid_t pid, Spawn(CommandOf(options), theirs.get()));
  theirs = OwnedFd();
  std::unique_ptr<CoordinatorChild> child(new CoordinatorChild(pid));

  std::string line;
  const bool in_time = AwaitReadable(ready.get(), deadline, clock);
  if (in_time) {
    line.resize(kMaxReadyBytes);
    const ssize_t size = read(ready.get(), line.data(), line.size());
    line.resize(size > 0 ? static_cast<size_t>(size) : 0);
  }
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (json.is_object() && json.contains("listen") && json["listen"].is_string()) {
    COORDD_ASSIGN_OR_RETURN(child->listen_, ParseHostPort(json["listen"].get<std::string>()));
    if (json.contains("http") && json["http"].is_string())
      child->http_ = json["http"].get<std::string>();
    return child;
  }
  kill(pid, SIGKILL);
  int status = 0;
  waitpid(pid, &status, 0);
  if (!in_time)
    return absl::DeadlineExceededError(absl::StrCat(options.program, " has not started in time"));
  return absl::UnavailableError(
      absl::StrCat(options.program, " has not started (its reason is above)"));
}

bool CoordinatorChild::Alive() {
  if (collected_) return false;
  int status = 0;
  const pid_t ended = waitpid(pid_, &status, WNOHANG);
  // ECHILD: the program collects all its children itself.
  if (ended == pid_ || (ended < 0 && kill(pid_, 0) != 0)) collected_ = true;
  return !collected_;
}

void CoordinatorChild::Finish(absl::Duration timeout, Clock& clock) {
  if (!Alive()) return;
  const OwnedFd watched(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
  kill(pid_, SIGUSR2);
  if (watched.get() >= 0) AwaitReadable(watched.get(), clock.Now() + timeout, clock);
  Alive();
}

}  // namespace coordd
