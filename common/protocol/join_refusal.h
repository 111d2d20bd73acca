// How a worker says that coordd has refused its Join, and how others find that in what its process
// has written. PURE
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace coordd {

// What a worker puts before coordd's reason.
inline constexpr absl::string_view kRefusedByCoordd = "coordd refused this worker: ";

// coordd's reason in a line of the process; empty: the line tells of no refusal.
inline std::string RefusalIn(absl::string_view line) {
  const size_t begin = line.find(kRefusedByCoordd);
  return begin == absl::string_view::npos
             ? std::string()
             : std::string(line.substr(begin + kRefusedByCoordd.size()));
}

}  // namespace coordd
