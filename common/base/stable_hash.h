// A hash that stays the same between programs and versions, unlike absl::Hash: FNV-1a. Not for
// secrets. PURE
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace coordd {

constexpr uint64_t StableHash(absl::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

}  // namespace coordd
