// What a dump of the stacks of a program's threads says, for people elsewhere. PURE
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace coordd {

// The stack as Python's faulthandler writes it ("Thread 0x..." and "Current thread 0x...", then
// indented lines), put in order: the current thread, which is the main one, goes first, addresses
// go. Anything else stays as it is. UTF-8, at most kMaxStackBytes of whole lines.
std::string StackText(absl::string_view dump);

}  // namespace coordd
