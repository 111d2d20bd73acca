// Ranks as people read them. PURE
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace coordd {

// "0-2, 4, 6-7". `ranks`: in order. Beyond `max_runs` runs: "0-2, 4 and 17 more".
inline std::string RankRunsText(const std::vector<int32_t>& ranks, size_t max_runs = SIZE_MAX) {
  std::vector<std::string> runs;
  size_t first = 0;
  for (size_t next = 0; first < ranks.size() && runs.size() < max_runs; first = next) {
    for (next = first + 1; next < ranks.size() && ranks[next] == ranks[next - 1] + 1;) ++next;
    runs.push_back(next - first == 1 ? absl::StrCat(ranks[first])
                                     : absl::StrCat(ranks[first], "-", ranks[next - 1]));
  }
  const std::string more =
      first < ranks.size() ? absl::StrCat(" and ", ranks.size() - first, " more") : "";
  return absl::StrCat(absl::StrJoin(runs, ", "), more);
}

}  // namespace coordd
