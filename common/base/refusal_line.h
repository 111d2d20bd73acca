// What our programs say on stderr as they refuse something. PURE
#pragma once

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/utf8.h"

namespace coordd {

// "coordd: --store is ..." as one line: what somebody has written into a flag, a variable or a file
// and `why` quotes neither steers a terminal nor passes for a second line.
inline std::string RefusalLine(absl::string_view program, absl::string_view why) {
  return absl::StrCat(program, ": ", PrintableText(why), "\n");
}

}  // namespace coordd
