// Whom to part with when members live and do not reach each other.
#pragma once

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "common/protocol/types.h"

namespace coordd {

// One of two ranks says that the other one is silent on the data plane. Which of the two it is, or
// what lies between them, nobody knows: the others can go on without either.
struct BlamedLink {
  Rank witness;
  Rank suspect;
};

// Collects what the members of a generation say within a moment. Only silence counts. A peer whose
// process has ended, or that has given up for a reason of its own, closes its connections, and
// those next to it see that: what they say is a consequence, and its cause departs or is reported
// by itself.
//
// PURE. Not thread-safe: one owner.
class Blame {
 public:
  void Report(Rank witness, Rank suspect);
  void Clear() { links_.clear(); }
  bool empty() const { return links_.empty(); }
  const std::vector<BlamedLink>& links() const { return links_; }

  // The smallest set of ranks that has an end of each link, in the order of ranks. Of several: the
  // one whose ranks were at such a link before (`marked`), then the one that more ranks blame, then
  // that of the higher ranks, since the lower ones are those that have been there longest.
  std::vector<Rank> Culprits(const std::set<Rank>& marked) const;
  // The first of the links that the rank is an end of. REQUIRES: there is one.
  const BlamedLink& LinkOf(Rank rank) const;

 private:
  std::vector<BlamedLink> links_;  // each pair once in each direction
};

}  // namespace coordd
