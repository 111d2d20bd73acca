// Whether a coordd that has ended is worth another start. PURE
#pragma once

#include "absl/time/time.h"

namespace coordd {

// Not thread-safe. coordd that ends as soon as it was started will do so again: after kMost of such
// ends, one after the other, it is given up. Whoever kills it from outside takes longer to find it.
class QuickDeaths {
 public:
  static constexpr absl::Duration kQuick = absl::Milliseconds(500);
  static constexpr int kMost = 5;

  // It has ended.
  void Died(absl::Time now) { count_ = now - since_ < kQuick ? count_ + 1 : 0; }
  // It has ended before it listened.
  void DiedAtOnce() { ++count_; }
  void Started(absl::Time now) { since_ = now; }
  bool too_many() const { return count_ >= kMost; }
  int count() const { return count_; }

 private:
  absl::Time since_ = absl::InfinitePast();
  int count_ = 0;
};

}  // namespace coordd
