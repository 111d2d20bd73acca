// When all keys with a prefix were deleted, for keys that are asked for in their order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "common/protocol/types.h"
#include "server/model/graveyard.h"

namespace coordd {

// PURE. Not thread-safe. However many prefixes and keys there are, and however they are nested:
// each prefix is looked at once in a walk over the keys.
class DeletedPrefixes {
 public:
  // Whether the prefix is a new one. REQUIRES: no walk has begun.
  bool Add(const std::string& prefix, StoreVersion version) {
    const auto [known, is_new] = versions_.try_emplace(prefix, version);
    known->second = std::max(known->second, version);
    return is_new;
  }
  // A walk begins before the first key.
  void Begin() {
    next_ = versions_.begin();
    around_.clear();
  }
  // Goes on to `key`, which is behind the one before; of `left` it takes what that costs. False:
  // there was too little.
  bool Reach(absl::string_view key, int64_t& left) {
    while (!around_.empty() && !absl::StartsWith(key, around_.back().first)) around_.pop_back();
    for (; next_ != versions_.end() && next_->first <= key; ++next_) {
      if (--left < 0) return false;
      if (!absl::StartsWith(key, next_->first)) continue;
      const StoreVersion outer = around_.empty() ? next_->second : around_.back().second;
      around_.emplace_back(next_->first, std::max(outer, next_->second));
    }
    return true;
  }
  // When the key that was reached was deleted last by one of them.
  std::optional<StoreVersion> last() const {
    if (around_.empty()) return std::nullopt;
    return around_.back().second;
  }

  bool empty() const { return versions_.empty(); }
  // Of the first ones, at most so many; how many it were. No walk goes on.
  int64_t Free(int64_t most) {
    around_.clear();
    return FreeFirst(versions_, most);
  }

 private:
  using Versions = std::map<std::string, StoreVersion>;

  Versions versions_;
  Versions::const_iterator next_;
  // Those with which the key begins, from the shortest on, each with the last version up to it.
  std::vector<std::pair<absl::string_view, StoreVersion>> around_;
};

}  // namespace coordd
