#include "common/launch/launch_facts.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/launch/connection_file.h"
#include "common/launch/host_identity.h"

namespace coordd {
namespace {

// A line for each of a million slots.
constexpr size_t kMaxFactBytes = size_t{16} << 20;

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  // O_NONBLOCK: a path that is a pipe must not hang.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  struct stat found = {};
  if (fd < 0 || fstat(fd, &found) != 0) {
    const int error = errno;
    if (fd >= 0) close(fd);
    return absl::NotFoundError(absl::StrCat(path, " cannot be read: ", std::strerror(error)));
  }
  std::string text;
  if (S_ISREG(found.st_mode) && static_cast<size_t>(found.st_size) <= kMaxFactBytes) {
    text.resize(static_cast<size_t>(found.st_size));
    const ssize_t size = read(fd, text.data(), text.size());
    text.resize(size > 0 ? static_cast<size_t>(size) : 0);
    close(fd);
    return text;
  }
  close(fd);
  return absl::InvalidArgumentError(
      absl::StrCat(path, " is no file of at most ", kMaxFactBytes, " bytes"));
}

// Of /proc/PID/stat: "PID (comm) S PPID ...", the start time being the 22nd field. comm may hold
// anything, parentheses too.
struct Process {
  std::string name;
  int parent = 0;
  std::string start;  // in clock ticks since boot
};

absl::StatusOr<Process> ReadProcess(int pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string text;
  std::getline(file, text);
  const size_t open = text.find('('), close = text.rfind(')');
  if (open == std::string::npos || close == std::string::npos || close < open)
    return absl::NotFoundError("no such process");
  const std::vector<std::string> rest =
      absl::StrSplit(absl::string_view(text).substr(close + 1), ' ', absl::SkipEmpty());
  Process process;
  process.name = text.substr(open + 1, close - open - 1);
  // Behind comm: state is field 3, the parent 4, the start 22.
  if (rest.size() < 20 || !absl::SimpleAtoi(rest[1], &process.parent))
    return absl::NotFoundError("no such process");
  process.start = rest[19];
  return process;
}

std::string Ancestor(const std::string& name) {
  constexpr int kMaxAncestors = 64;     // a shell in a shell in a shell
  constexpr size_t kMaxNameBytes = 15;  // what the kernel keeps of a program's name
  int pid = getppid();
  for (int i = 0; i < kMaxAncestors && pid > 1; ++i) {
    const absl::StatusOr<Process> process = ReadProcess(pid);
    if (!process.ok()) return "";
    if (process->name == name.substr(0, kMaxNameBytes))
      return absl::StrCat(ThisHost("").node_id, " ", pid, " ", process->start);
    pid = process->parent;
  }
  return "";
}

}  // namespace

LaunchFacts ThisLaunchFacts() { return {ThisHost("").hostname, ReadFile, Ancestor}; }

AutoSettings AutoSettingsFrom(const Environment& environment) {
  AutoSettings settings;
  settings.rendezvous_file = Variable(environment, "COORDD_RENDEZVOUS_FILE");
  settings.shared_directory = Variable(environment, "HOME");
  settings.local_directory = ConnectionDirectory(environment).value_or("");
  return settings;
}

}  // namespace coordd
