#include "common/base/descriptor_limit.h"

#include <dirent.h>
#include <sys/resource.h>

#include <algorithm>

namespace coordd {

void RaiseDescriptorLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

Descriptors CountDescriptors() {
  Descriptors found;
  rlimit limit = {};
  // "Unlimited" is a number that no table reaches.
  constexpr rlim_t kNobodyHasMore = 1 << 30;
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
    found.max = static_cast<size_t>(std::min(limit.rlim_cur, kNobodyHasMore));
  DIR* open = opendir("/proc/self/fd");
  if (open == nullptr) return found;
  while (const dirent* entry = readdir(open)) found.in_use += entry->d_name[0] != '.' ? 1 : 0;
  closedir(open);
  found.in_use -= std::min<size_t>(found.in_use, 1);  // the listing's own
  return found;
}

}  // namespace coordd
