// How many keys begin with the prefixes that somebody has asked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace coordd {

// PURE. Not thread-safe. Of the last few prefixes: a count that was made once is kept, so that who
// asks for it again walks over no keys.
class PrefixCounts {
 public:
  static constexpr size_t kMaxPrefixes = 8;

  std::optional<int64_t> Find(absl::string_view prefix) const {
    for (const auto& [known, count] : counts_)
      if (known == prefix) return count;
    return std::nullopt;
  }
  // REQUIRES: it is not known.
  void Keep(absl::string_view prefix, int64_t count) {
    if (counts_.size() == kMaxPrefixes) counts_.pop_front();
    counts_.emplace_back(prefix, count);
  }
  // The key has come (`by` 1) or gone (-1).
  void Change(absl::string_view key, int64_t by) {
    for (auto& [prefix, count] : counts_)
      if (absl::StartsWith(key, prefix)) count += by;
  }
  void Clear() { counts_.clear(); }
  const std::deque<std::pair<std::string, int64_t>>& all() const { return counts_; }

 private:
  std::deque<std::pair<std::string, int64_t>> counts_;
};

}  // namespace coordd
