#include "worker/ucx_log.h"

// Its macros are of no use here.
#include <ucs/debug/log_def.h>

#include <cstdarg>
#include <cstdio>
#include <mutex>

namespace coordd {
namespace {

// Longer ones are cut.
constexpr int kLineBytesMax = 1024;

ucs_log_func_rc_t WriteToStderr(const char*, unsigned, const char*, ucs_log_level_t level,
                                const ucs_log_component_config_t*, const char* format,
                                va_list arguments) {
  // It ends the process with more than a line.
  if (level == UCS_LOG_LEVEL_FATAL) return UCS_LOG_FUNC_RC_CONTINUE;
  char line[kLineBytesMax];
  std::vsnprintf(line, sizeof(line), format, arguments);
  std::fprintf(stderr, "UCX %s %s\n", ucs_log_level_names[level], line);
  return UCS_LOG_FUNC_RC_STOP;
}

}  // namespace

void SendUcxLogToStderr(const Environment& environment) {
  static std::once_flag once;
  if (environment.contains("UCX_LOG_FILE")) return;
  std::call_once(once, [] { ucs_log_push_handler(&WriteToStderr); });
}

}  // namespace coordd
