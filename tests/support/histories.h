// How many random histories a test looks at.
#pragma once

#include "tests/support/sanitized.h"

namespace coordd {

// `all`, or a quarter under a sanitizer: that makes each ten times as long, and has less to find in
// the next one than the test's own checks, which every other build makes on all of them.
template <typename Int>
constexpr Int Histories(Int all) {
  return kIsSanitized ? all / 4 : all;
}

}  // namespace coordd
