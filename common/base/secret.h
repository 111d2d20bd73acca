// Comparing secrets.
#pragma once

#include <algorithm>
#include <cstddef>

#include "absl/strings/string_view.h"

namespace coordd {

// Takes time that depends on the lengths only, so that a wrong token tells nothing about the right
// one.
inline bool SecretsEqual(absl::string_view a, absl::string_view b) {
  unsigned char differs = a.size() == b.size() ? 0 : 1;
  const size_t common = std::min(a.size(), b.size());
  for (size_t i = 0; i < common; ++i) {
    differs = static_cast<unsigned char>(differs | (a[i] ^ b[i]));
  }
  return differs == 0;
}

}  // namespace coordd
