#include "client/coordrun/guardian.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <set>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace coordd {
namespace {

struct Message {  // below PIPE_BUF, so that it is written whole or not at all
  int32_t group;
  int32_t watch;
};

// In the guardian; never returns.
[[noreturn]] void Guard(int pipe, const std::string& directory) {
  setsid();  // Ctrl-C and a closed terminal are for coordrun
  for (const int ignored : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) signal(ignored, SIG_IGN);
  prctl(PR_SET_NAME, "coordrun-guard");
  // Who reads coordrun's output waits until the last holder of its end has closed it.
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int fd : {0, 1, 2}) dup2(null, fd);
  std::set<pid_t> groups;
  Message message;
  while (true) {
    const ssize_t got = read(pipe, &message, sizeof(message));
    if (got < 0 && errno == EINTR) continue;
    if (got != static_cast<ssize_t>(sizeof(message))) break;
    if (message.watch != 0) {
      groups.insert(message.group);
    } else {
      groups.erase(message.group);
    }
  }
  for (const pid_t group : groups) kill(-group, SIGKILL);
  std::error_code error;  // there is nobody left to tell
  if (!directory.empty()) std::filesystem::remove_all(directory, error);
  _exit(0);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Guardian>> Guardian::Start(const std::string& directory) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return absl::UnavailableError(absl::StrCat("a pipe cannot be made: ", std::strerror(errno)));
  }
  UniqueFd read_end(ends[0]), write_end(ends[1]);
  const pid_t pid = fork();
  if (pid < 0) return absl::UnavailableError(absl::StrCat("fork: ", std::strerror(errno)));
  if (pid == 0) {
    write_end.Close();
    Guard(read_end.get(), directory);
  }
  return std::unique_ptr<Guardian>(new Guardian(pid, std::move(write_end)));
}

Guardian::~Guardian() {
  pipe_.Close();
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Guardian::Tell(pid_t group, bool watch) {
  const Message message = {.group = group, .watch = watch ? 1 : 0};
  // Should the guardian be gone, there is nobody to tell; the run goes on without it.
  while (write(pipe_.get(), &message, sizeof(message)) < 0 && errno == EINTR) {
  }
}

}  // namespace coordd
