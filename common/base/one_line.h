// What somebody else has said, as a part of our sentences and logs. PURE
#pragma once

#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"
#include "common/base/utf8.h"

namespace coordd {

// The text on one line: control characters, which could forge lines of a log, become spaces, and
// what else a terminal should not have is written out (PrintableText).
inline std::string OneLine(absl::string_view text) {
  std::string line(text);
  std::replace_if(
      line.begin(), line.end(), [](char c) { return absl::ascii_iscntrl(c); }, ' ');
  return PrintableText(line);
}

}  // namespace coordd
