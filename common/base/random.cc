#include "common/base/random.h"

#include <sys/random.h>

#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"
#include "common/base/check.h"

namespace coordd {

Random Random::FromSystem() {
  uint64_t seed = 0;
  COORDD_CHECK(getrandom(&seed, sizeof(seed), 0) == static_cast<ssize_t>(sizeof(seed)));
  return Random(seed);
}

std::string SecretHex(int bytes) {
  std::vector<char> raw(static_cast<size_t>(bytes));
  // Up to 256 bytes getrandom neither returns short nor is interrupted (getrandom(2)).
  COORDD_CHECK(bytes > 0 && bytes <= 256);
  COORDD_CHECK(getrandom(raw.data(), raw.size(), 0) == static_cast<ssize_t>(raw.size()));
  return absl::BytesToHexString(absl::string_view(raw.data(), raw.size()));
}

}  // namespace coordd
