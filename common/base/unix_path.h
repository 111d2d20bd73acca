// How long the path of a Unix socket may be.
#pragma once

#include <sys/un.h>

#include <cstddef>

namespace coordd {

// 107 bytes: the kernel has 108 bytes for a path, with the zero at its end.
inline constexpr size_t kUnixPathBytesMax = sizeof(sockaddr_un::sun_path) - 1;
// Of a relay's, which is bound beside its place first: a dot and six digits are its name there.
inline constexpr size_t kRelayPathBytesMax = kUnixPathBytesMax - 7;

}  // namespace coordd
