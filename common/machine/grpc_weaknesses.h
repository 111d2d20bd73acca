// Which published weaknesses a version of gRPC has that a client could use against coordd.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace coordd {

// PURE. Their names, oldest first, of gRPC as its authors have released it; a distribution may have
// mended them without another version. `version`: "1.51.1". Empty: none, or no version.
std::vector<std::string> GrpcWeaknesses(absl::string_view version);

// The same as a phrase for people, with what coordd does about them; empty without any.
std::string GrpcWeaknessText(absl::string_view version);

}  // namespace coordd
