// How far a walk over what members have reported has come, which may take many turns. PURE
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/status_macros.h"
#include "common/protocol/types.h"

namespace coordd {

struct EntryWalk {
  int64_t left = 0;  // of what may be looked at in this turn
  int32_t rank = 0;
  int64_t entry = 0;
  int64_t key = std::numeric_limits<int32_t>::min();

  // Goes on over the entries of each rank, of which it has `count(rank)`; whether that was all.
  template <typename Count, typename Look>
  absl::StatusOr<bool> ForEach(int32_t ranks, Count count, Look look) {
    for (; rank < ranks; ++rank, entry = 0) {
      if (--left < 0) return false;
      for (const int64_t all = count(rank); entry < all; ++entry) {
        if (--left < 0) return false;
        COORDD_RETURN_IF_ERROR(look(rank, static_cast<int>(entry)));
      }
    }
    return true;
  }

  // Likewise over a map. `look` may take nothing out of it.
  template <typename Map, typename Look>
  absl::StatusOr<bool> ForEachOf(Map& map, Look look) {
    auto it = map.begin();
    if constexpr (std::is_same_v<typename Map::key_type, ProcessSetId>) {
      it = map.lower_bound(ProcessSetId{static_cast<int32_t>(key)});
    } else {
      it = map.lower_bound(key);
    }
    for (; it != map.end(); ++it) {
      if (--left < 0) {
        key = NumberOf(it->first);
        return false;
      }
      COORDD_RETURN_IF_ERROR(look(it->first, it->second));
    }
    return true;
  }

 private:
  static int64_t NumberOf(int64_t number) { return number; }
  static int64_t NumberOf(ProcessSetId id) { return ToInt(id); }
};

}  // namespace coordd
