// Versions of coordd and of what it was built with.
#pragma once

#include <cstdint>

namespace coordd {

inline constexpr char kVersion[] = "0.1.0";
// Revision of proto/coordd/v1. Peers with different ones refuse each other with a sentence that
// names both.
inline constexpr int32_t kProtocolVersion = 1;

}  // namespace coordd
