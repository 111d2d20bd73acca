#include "common/base/environment.h"

#include <unistd.h>

#include <cstring>

namespace coordd {

Environment ReadEnvironment() {
  Environment result;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const char* equals = std::strchr(*entry, '=');
    if (equals != nullptr)
      result.emplace(std::string(*entry, static_cast<size_t>(equals - *entry)), equals + 1);
  }
  return result;
}

std::string Variable(const Environment& environment, const std::string& name) {
  const auto found = environment.find(name);
  return found == environment.end() ? std::string() : found->second;
}

}  // namespace coordd
