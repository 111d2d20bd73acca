// What of a process's stderr goes into the errors of others. PURE
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "client/coordrun/process/process_end.h"
#include "coordd/v1/types.pb.h"

namespace coordd {

// Without colours and other sequences that terminals obey; of a progress bar, its last state.
std::string WithoutEscapes(absl::string_view line);

// Without colours and other control characters, as UTF-8, trimmed and shortened.
std::string CleanLine(absl::string_view line);

// The last lines that say something, oldest first: three, which holds what an uncaught error of
// Python or C++ ends with.
std::vector<std::string> LastWords(const std::deque<std::string>& tail);

// For coordd. `reason`: why coordrun had ended it; empty: it had not.
v1::ProcessExit ToProto(const ProcessEnd& end, const std::deque<std::string>& tail,
                        const std::string& reason);

}  // namespace coordd
