// Numbers of things as people write them. PURE
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace coordd {

// "1 job", "2 jobs"; `several`, where that is not `one` with an s: "2 batches".
inline std::string Counted(int64_t number, absl::string_view one, absl::string_view several = "") {
  if (number == 1) return absl::StrCat(number, " ", one);
  return several.empty() ? absl::StrCat(number, " ", one, "s") : absl::StrCat(number, " ", several);
}

}  // namespace coordd
