#include "common/base/nearest_word.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/match.h"

namespace coordd {
namespace {

constexpr size_t kLongest = 64;         // longer words are no flags of ours
constexpr size_t kLettersPerFault = 3;  // a word of 6 letters may have two

// How many letters are missing, too many, other ones or exchanged with their neighbour.
size_t FaultsBetween(absl::string_view a, absl::string_view b) {
  std::vector<size_t> before_last, last, row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    before_last = std::move(last);
    last = row;
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t differs = a[i - 1] == b[j - 1] ? 0 : 1;
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + differs});
      const bool exchanged = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (exchanged) row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
  }
  return row.back();
}

}  // namespace

std::string NearestWord(absl::string_view word, const std::vector<std::string>& known) {
  if (word.empty() || word.size() > kLongest) return "";
  const std::string* nearest = nullptr;
  size_t fewest = std::max<size_t>(1, word.size() / kLettersPerFault) + 1;
  for (const std::string& one : known) {
    const size_t faults = absl::StartsWith(one, word) ? 0 : FaultsBetween(word, one);
    if (faults >= fewest) continue;
    fewest = faults;
    nearest = &one;
  }
  return nearest == nullptr ? "" : *nearest;
}

}  // namespace coordd
