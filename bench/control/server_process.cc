#include "bench/control/server_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/grpc/certs.h"

extern char** environ;

namespace coordd::bench {
namespace {

constexpr int kReadyFd = 3;  // in the child
constexpr int kStartTimeoutMs = 20000;
constexpr size_t kMaxReadyBytes = 4096;

absl::StatusOr<pid_t> Spawn(std::vector<std::string> command, int ready) {
  command.insert(command.end(), {"--ready-fd", absl::StrCat(kReadyFd)});
  std::vector<char*> arguments;
  for (std::string& argument : command) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, ready, kReadyFd);
  posix_spawn_file_actions_addclosefrom_np(&actions, kReadyFd + 1);
  pid_t pid = 0;
  const int error = posix_spawn(&pid, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error == 0) return pid;
  return absl::UnavailableError(
      absl::StrCat(command[0], " cannot be started: ", std::strerror(error)));
}

std::string ReadLine(int fd) {
  pollfd waiting = {.fd = fd, .events = POLLIN, .revents = 0};
  if (poll(&waiting, 1, kStartTimeoutMs) <= 0) return "";
  std::string line(kMaxReadyBytes, '\0');
  const ssize_t size = read(fd, line.data(), line.size());
  line.resize(size > 0 ? static_cast<size_t>(size) : 0);
  return line;
}

}  // namespace

std::string BesideUs(absl::string_view program) {
  std::error_code error;
  const std::filesystem::path own = std::filesystem::read_symlink("/proc/self/exe", error);
  return absl::StrCat(own.parent_path().string(), "/", program);
}

absl::StatusOr<std::unique_ptr<ServerProcess>> ServerProcess::Launch(
    std::vector<std::string> command) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    return absl::UnavailableError(absl::StrCat("no pipe: ", std::strerror(errno)));
  OwnedFd ready(ends[0]);
  OwnedFd theirs(ends[1]);
  // dup2 onto itself would leave it to be closed by exec.
  if (theirs.get() == kReadyFd) theirs = OwnedFd(fcntl(kReadyFd, F_DUPFD_CLOEXEC, kReadyFd + 1));
  const std::string name = command[0];
  COORDD_ASSIGN_OR_RETURN(const pid_t pid, Spawn(std::move(command), theirs.get()));
  return absl::WrapUnique(new ServerProcess(pid, name, std::move(ready)));
}

absl::Status ServerProcess::AwaitReady() {
  const auto json =
      nlohmann::json::parse(ReadLine(ready_.get()), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("listen") || !json["listen"].is_string())
    return absl::UnavailableError(absl::StrCat(name_, " did not start (its reason is above)"));
  COORDD_ASSIGN_OR_RETURN(address_, ParseHostPort(json["listen"].get<std::string>()));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ServerProcess>> ServerProcess::Start(
    std::vector<std::string> command) {
  COORDD_ASSIGN_OR_RETURN(std::unique_ptr<ServerProcess> server, Launch(std::move(command)));
  COORDD_RETURN_IF_ERROR(server->AwaitReady());
  return server;
}

absl::StatusOr<std::unique_ptr<ServerProcess>> ServerProcess::StartCoordd(
    const std::vector<std::string>& arguments, const std::string& tls) {
  std::vector<std::string> command = {BesideUs("coordd"),
                                      "--listen",
                                      "127.0.0.1:0",
                                      "--http",
                                      "127.0.0.1:0",
                                      "--store",
                                      "memory",
                                      "--log-level",
                                      "error",
                                      "--exit-with",
                                      absl::StrCat(getpid()),
                                      "--connection-file",
                                      ""};
  command.insert(command.end(), arguments.begin(), arguments.end());
  if (!tls.empty()) {
    const TlsFiles files = ServerTlsFiles(tls);
    command.insert(command.end(),
                   {"--tls-cert", files.cert, "--tls-key", files.key, "--tls-ca", files.ca});
  }
  return Start(std::move(command));
}

ServerProcess::~ServerProcess() {
  kill(pid_, SIGKILL);
  int status = 0;
  waitpid(pid_, &status, 0);
}

absl::Duration ServerProcess::CpuTime() const {
  clockid_t clock;
  timespec time = {};
  if (clock_getcpuclockid(pid_, &clock) != 0 || clock_gettime(clock, &time) != 0)
    return absl::ZeroDuration();
  return absl::DurationFromTimespec(time);
}

int64_t ServerProcess::ResidentBytes() const {
  std::ifstream statm(absl::StrCat("/proc/", pid_, "/statm"));
  int64_t all_pages = 0, resident_pages = 0;
  statm >> all_pages >> resident_pages;
  return resident_pages * sysconf(_SC_PAGESIZE);
}

}  // namespace coordd::bench
