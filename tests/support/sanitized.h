// Whether this is a build with a sanitizer, whose memory and time are no measure.
#pragma once

namespace coordd {

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define COORDD_IS_SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COORDD_IS_SANITIZED 1
#endif

#ifdef COORDD_IS_SANITIZED
inline constexpr bool kIsSanitized = true;
#else
inline constexpr bool kIsSanitized = false;
#endif

}  // namespace coordd
