// SHA-256, for what is stored: records that prove that they are whole, tokens that cannot be read.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace coordd {

// The SHA-256 of `bytes`, as 32 bytes.
std::string Sha256(absl::string_view bytes);

}  // namespace coordd
