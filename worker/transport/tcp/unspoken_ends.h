// Whose the connections were that were closed before a word. PURE
#pragma once

#include <cstddef>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/net/address.h"

namespace coordd {

// Of two ranks that connect to each other at once the one gives its own up, perhaps before it has
// said anything, and a rank may end there, too. So what comes from a host of ranks and leaves
// without a word is no stranger's. Which hosts these are is known little by little: of an end from
// another one it is said after kKnownWithin. Not thread-safe.
class UnspokenEnds {
 public:
  // The ranks of a generation do the same things, so that each hears of the others soon.
  static constexpr absl::Duration kKnownWithin = absl::Seconds(10);
  static constexpr size_t kUnknownMax = 64;

  // A rank listens there, or has come from there.
  void NoteRankAt(absl::string_view host);
  bool HasRanks(absl::string_view host) const { return hosts_.find(host) != hosts_.end(); }
  void Add(const HostPort& from, absl::Time now);
  // Those that nobody knows after their time, and where there are too many the oldest ones; each
  // once.
  std::vector<HostPort> TakeStrangers(absl::Time now);
  bool empty() const { return unknown_.empty(); }

 private:
  std::set<std::string, std::less<>> hosts_;
  std::vector<std::pair<HostPort, absl::Time>> unknown_;  // the oldest first
};

}  // namespace coordd
