// How many random histories a test looks at.
#pragma once

namespace coordd {

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define COORDD_SANITIZED_HISTORIES 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COORDD_SANITIZED_HISTORIES 1
#endif

// `all`, or a quarter under a sanitizer: that makes each ten times as long, and has less to find in
// the next one than the test's own checks, which every other build makes on all of them.
template <typename Int>
constexpr Int Histories(Int all) {
#ifdef COORDD_SANITIZED_HISTORIES
  return all / 4;
#else
  return all;
#endif
}

}  // namespace coordd
