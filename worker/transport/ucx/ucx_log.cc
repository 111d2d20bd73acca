#include "worker/transport/ucx/ucx_log.h"

#include <cstdarg>
#include <cstdio>
#include <iterator>
#include <mutex>

namespace coordd {
namespace {

constexpr const char* kLevels[] = {"FATAL", "ERROR", "WARN", "DIAG", "INFO"};

const char* LevelName(ucs_log_level_t level) {
  return static_cast<size_t>(level) < std::size(kLevels) ? kLevels[level] : "DEBUG";
}

// Longer ones are cut.
constexpr int kLineBytesMax = 1024;

ucs_log_func_rc_t WriteToStderr(const char*, unsigned, const char*, ucs_log_level_t level,
                                const ucs_log_component_config_t*, const char* format,
                                va_list arguments) {
  // It ends the process with more than a line.
  if (level == UCS_LOG_LEVEL_FATAL) return UCS_LOG_FUNC_RC_CONTINUE;
  char line[kLineBytesMax];
  std::vsnprintf(line, sizeof(line), format, arguments);
  std::fprintf(stderr, "UCX %s %s\n", LevelName(level), line);
  return UCS_LOG_FUNC_RC_STOP;
}

}  // namespace

void SendUcxLogToStderr(const UcxFunctions& ucx, const Environment& environment) {
  static std::once_flag once;
  if (environment.contains("UCX_LOG_FILE")) return;
  std::call_once(once, [&ucx] { ucx.log_push_handler(&WriteToStderr); });
}

}  // namespace coordd
