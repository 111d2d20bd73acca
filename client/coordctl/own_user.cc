#include "client/coordctl/own_user.h"

#include <pwd.h>
#include <unistd.h>

#include <array>
#include <string>

#include "absl/strings/str_cat.h"

namespace coordd {

Environment WithUser(Environment environment) {
  if (!Variable(environment, "USER").empty() || !Variable(environment, "LOGNAME").empty())
    return environment;
  passwd entry = {}, *found = nullptr;
  std::array<char, 16384> strings{};
  const bool known = getpwuid_r(geteuid(), &entry, strings.data(), strings.size(), &found) == 0 &&
                     found != nullptr && entry.pw_name != nullptr;
  environment["USER"] = known ? std::string(entry.pw_name) : absl::StrCat("uid ", geteuid());
  return environment;
}

}  // namespace coordd
