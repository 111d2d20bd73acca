// Text that may travel: the protocol's strings are UTF-8 (RFC 3629), and a message with another one
// cannot be read. PURE
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace coordd {

bool IsUtf8(absl::string_view text);
// The first `max_bytes` of `text` at most, in whole characters; what is not UTF-8 becomes '?'.
std::string ShortenedText(absl::string_view text, size_t max_bytes);

// `text` as a terminal may have it, whoever has written it: control characters, marks that reorder
// or hide text, spaces but the plain one, characters that Unicode has not assigned, and bytes that
// are not UTF-8 are written out as \x1b, \u202e, \xff. Characters of `kept` stay, such as "\n"
// where lines are meant.
std::string PrintableText(absl::string_view text, absl::string_view kept = {});
bool IsPrintable(absl::string_view text);  // it stays as it is

// Rewrites JSON text whose strings hold such characters as equal JSON that holds them as \u
// escapes.
std::string PrintableJson(absl::string_view json);

}  // namespace coordd
