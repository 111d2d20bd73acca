// The sentence about an option that cannot be used.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/utf8.h"

namespace coordd {

// Returns INVALID_ARGUMENT: the option or variable, what was found and what was expected.
inline absl::Status InvalidOption(absl::string_view what, absl::string_view found,
                                  absl::string_view expected) {
  return absl::InvalidArgumentError(
      PrintableText(absl::StrCat(what, " is ", found, ", expected ", expected)));
}

}  // namespace coordd
