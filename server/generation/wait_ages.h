// How long things have been waited for, and of which ones that has been told.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace coordd {

// PURE. Not thread-safe. `since`, of a key that is here, is what it was entered with, and what has
// been forgiven since.
template <typename Key>
class WaitAges {
 public:
  void Enter(absl::Time since, const Key& key) {
    by_age_.emplace(since, key);
    untold_.emplace(since, key);
  }
  void Leave(absl::Time since, const Key& key) {
    by_age_.erase({since, key});
    untold_.erase({since, key});
  }

  // Those that were entered with `since` or earlier, the oldest first; each once.
  std::vector<Key> TellOlder(absl::Time since) {
    std::vector<Key> told;
    for (; !untold_.empty() && untold_.begin()->first <= since; untold_.erase(untold_.begin()))
      told.push_back(untold_.begin()->second);
    return told;
  }
  // Likewise, at most `limit`, again and again.
  std::vector<Key> Older(absl::Time since, size_t limit) const {
    std::vector<Key> older;
    for (const auto& [entered, key] : by_age_) {
      if (entered > since || older.size() == limit) break;
      older.push_back(key);
    }
    return older;
  }
  // How many TellOlder has told of that are still here.
  int64_t told() const { return static_cast<int64_t>(by_age_.size() - untold_.size()); }
  // The earliest of which it has not. InfiniteFuture: there is none.
  absl::Time oldest_untold() const {
    return untold_.empty() ? absl::InfiniteFuture() : untold_.begin()->first;
  }

  // Nobody waited for `gap`.
  void Forgive(absl::Duration gap) {
    for (Times* times : {&by_age_, &untold_}) {
      Times later;
      for (const auto& [since, key] : *times) later.emplace_hint(later.end(), since + gap, key);
      times->swap(later);
    }
  }
  void Clear() {
    by_age_.clear();
    untold_.clear();
  }

 private:
  using Times = std::set<std::pair<absl::Time, Key>>;

  Times by_age_;
  Times untold_;  // of these
};

}  // namespace coordd
