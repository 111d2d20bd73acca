// Which known word somebody who mistyped has meant.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace coordd {

// The known word that `word` is nearest to: one that begins with it, or differs by few letters that
// are missing, too many, other ones or exchanged with their neighbour. Empty: it is like none of
// them. PURE.
std::string NearestWord(absl::string_view word, const std::vector<std::string>& known);

}  // namespace coordd
