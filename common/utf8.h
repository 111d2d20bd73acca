// Text that may travel: the protocol's strings are UTF-8 (RFC 3629), and a message with another one
// cannot be read. PURE
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace coordd {

bool IsUtf8(absl::string_view text);
// At most `max_bytes` of `text`, whole characters; what is not UTF-8 becomes '?'.
std::string ShortenedText(absl::string_view text, size_t max_bytes);

}  // namespace coordd
