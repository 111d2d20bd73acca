// COORDD_CHECK: a broken invariant of ours ends the process, in release builds too. Never for bad
// input: that is a status.
#pragma once

namespace coordd::internal {
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition);
}  // namespace coordd::internal

#define COORDD_CHECK(condition)                                        \
  do {                                                                 \
    if (!(condition)) [[unlikely]]                                     \
      ::coordd::internal::CheckFailed(__FILE__, __LINE__, #condition); \
  } while (false)
