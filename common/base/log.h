// Lines for people on stderr: "coordd I 12:34:56.789 session.cc:42] worker joined". One line per
// call, whole.
#pragma once

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace coordd {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// The level is set once by main (default kInfo, and "coordd" as the program). Thread-safe.
void SetLogLevel(LogLevel level);
void SetLogProgram(absl::string_view program);
bool LogEnabled(LogLevel level);

namespace internal {
void LogLine(LogLevel level, const char* file, int line, absl::string_view text);
}

}  // namespace coordd

// COORDD_LOG(kInfo, "worker ", id, " joined job ", job): the arguments of absl::StrCat, evaluated
// only when the level is on.
#define COORDD_LOG(level, ...)                                                   \
  do {                                                                           \
    if (::coordd::LogEnabled(::coordd::LogLevel::level))                         \
      ::coordd::internal::LogLine(::coordd::LogLevel::level, __FILE__, __LINE__, \
                                  ::absl::StrCat(__VA_ARGS__));                  \
  } while (false)
