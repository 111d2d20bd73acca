#include "common/memory_limit.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace coordd {
namespace {

// SIZE_MAX: none is set, or this is no cgroup v2.
size_t ControlGroupBound() {
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    absl::string_view path = line;
    if (!absl::ConsumePrefix(&path, "0::")) continue;
    std::ifstream bound(absl::StrCat("/sys/fs/cgroup", path, "/memory.max"));
    std::string text;
    size_t bytes = 0;
    if (std::getline(bound, text) && absl::SimpleAtoi(text, &bytes)) return bytes;
  }
  return SIZE_MAX;
}

}  // namespace

size_t MemoryLimit() {
  size_t bytes = static_cast<size_t>(std::max(sysconf(_SC_PHYS_PAGES), 1L)) *
                 static_cast<size_t>(sysconf(_SC_PAGESIZE));
  rlimit limit = {};
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    bytes = std::min(bytes, static_cast<size_t>(limit.rlim_cur));
  return std::min(bytes, ControlGroupBound());
}

}  // namespace coordd
