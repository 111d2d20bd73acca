#include "common/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace coordd::internal {

void CheckFailed(const char* file, int line, const char* condition) {
  std::fprintf(stderr, "coordd: broken invariant at %s:%d: %s\n", file, line, condition);
  std::abort();
}

}  // namespace coordd::internal
