#include "common/base/log.h"

#include <unistd.h>

#include <atomic>
#include <cstring>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/base/utf8.h"

namespace coordd {
namespace {

std::atomic<int> minimum_level{static_cast<int>(LogLevel::kInfo)};

struct Program {
  Mutex mu;
  std::string name ABSL_GUARDED_BY(mu) = "coordd";
};
Program& TheProgram() {
  static Program* program = new Program();
  return *program;
}

}  // namespace

void SetLogLevel(LogLevel level) { minimum_level = static_cast<int>(level); }

void SetLogProgram(absl::string_view program) {
  MutexLock lock(&TheProgram().mu);
  TheProgram().name = std::string(program);
}

bool LogEnabled(LogLevel level) {
  return static_cast<int>(level) >= minimum_level.load(std::memory_order_relaxed);
}

namespace internal {

void LogLine(LogLevel level, const char* file, int line, absl::string_view text) {
  const char* base = std::strrchr(file, '/');
  std::string program;
  {
    MutexLock lock(&TheProgram().mu);
    program = TheProgram().name;
  }
  // Wall time: people compare these lines between machines.
  const std::string out = absl::StrCat(
      program, " ", absl::string_view(&"DIWE"[static_cast<int>(level)], 1), " ",
      absl::FormatTime("%H:%M:%E3S", absl::Now(), absl::LocalTimeZone()), " ",
      base == nullptr ? file : base + 1, ":", line, "] ", PrintableText(text, "\n\t"), "\n");
  // One write: lines of several processes on one terminal stay whole.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, out.data(), out.size());
}

}  // namespace internal
}  // namespace coordd
