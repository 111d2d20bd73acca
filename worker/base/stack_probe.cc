#include "worker/base/stack_probe.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "worker/base/stack_text.h"

namespace coordd {
namespace {

constexpr size_t kMaxDumpBytes = 64 << 10;  // of it the main thread may be the last

bool IsHandled(int signal) {
  struct sigaction action = {};
  if (sigaction(signal, nullptr, &action) != 0) return false;
  return action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN;
}

}  // namespace

void StackProbe::Ask() {
  if (source_.signal <= 0 || !IsHandled(source_.signal)) return;
  MutexLock lock(&mu_);
  if (ftruncate(source_.fd, 0) != 0 || lseek(source_.fd, 0, SEEK_SET) != 0) return;
  const pid_t process = getpid();  // also the number of its main thread
  asked_ = syscall(SYS_tgkill, process, process, source_.signal) == 0;
}

std::string StackProbe::Take() {
  MutexLock lock(&mu_);
  if (!asked_) return "";
  std::string dump(kMaxDumpBytes, '\0');
  const ssize_t bytes = pread(source_.fd, dump.data(), dump.size(), 0);
  if (bytes <= 0) return "";
  asked_ = false;
  dump.resize(static_cast<size_t>(bytes));
  return StackText(dump);
}

}  // namespace coordd
