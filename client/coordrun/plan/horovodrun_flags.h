// The flags of horovodrun and of other launchers: those that mean the same are taken, the others
// get an answer. PURE
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace coordd {

// coordrun's options (without the program's name and without the command), with horovodrun's
// spellings replaced by ours. INVALID_ARGUMENT: one that has no counterpart, and what to do
// instead. `note`: a sentence about those that are ignored; empty: there are none.
absl::StatusOr<std::vector<std::string>> TranslateHorovodrun(
    const std::vector<std::string>& arguments, std::string* note = nullptr);

// What such a flag means for the words behind it: our name for it, or whether it takes a value that
// coordrun has no option for. Neither: it is none of horovodrun's, or it takes no value.
struct HorovodrunFlag {
  std::string ours;
  bool takes_value = false;
};
HorovodrunFlag FindHorovodrunFlag(const std::string& name);

}  // namespace coordd
