#include "server/job/blame.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "common/base/check.h"

namespace coordd {
namespace {

// Up to this many culprits the smallest set is searched for, in 2^n steps. A network that loses
// more links at once has lost a switch, where each end with most links is on the same side.
constexpr size_t kMaxSearched = 10;

using Links = std::vector<BlamedLink>;
using Ranks = std::set<Rank>;

bool Covers(const Ranks& ranks, const BlamedLink& link) {
  return ranks.contains(link.witness) || ranks.contains(link.suspect);
}

class Search {
 public:
  Search(const Links& links, const Ranks& marked) : links_(links), marked_(marked) {}

  // The best of all sets of at most `most` ranks.
  std::optional<Ranks> Smallest(size_t most) {
    for (size_t size = 1; size <= most && !best_.has_value(); ++size) Extend({}, size);
    return best_;
  }

  // Whoever is at the most links that are left, one after the other.
  Ranks Greedy() const {
    Ranks chosen;
    while (FirstOpen(chosen) != nullptr) {
      std::map<Rank, size_t> open;
      for (const BlamedLink& link : links_) {
        if (Covers(chosen, link)) continue;
        ++open[link.witness];
        ++open[link.suspect];
      }
      size_t most = 0;
      Rank next;
      for (const auto& [rank, count] : open) {
        if (count < most || (count == most && Weight({rank}) < Weight({next}))) continue;
        most = count;
        next = rank;
      }
      chosen.insert(next);
    }
    return chosen;
  }

 private:
  // How many have been marked, how many blame them, and the highest ranks of them.
  using Weighed = std::tuple<size_t, size_t, std::vector<Rank>>;

  const BlamedLink* FirstOpen(const Ranks& chosen) const {
    const auto open = std::find_if(links_.begin(), links_.end(),
                                   [&](const BlamedLink& link) { return !Covers(chosen, link); });
    return open == links_.end() ? nullptr : &*open;
  }

  Weighed Weight(const Ranks& ranks) const {
    size_t marked = 0;
    for (Rank rank : ranks) marked += marked_.count(rank);
    const auto blames = [&](const BlamedLink& link) { return ranks.contains(link.suspect); };
    const auto blamed = std::count_if(links_.begin(), links_.end(), blames);
    return {marked, static_cast<size_t>(blamed), std::vector<Rank>(ranks.rbegin(), ranks.rend())};
  }

  // One end of each link has to be in the set: the first that has none leaves two ways.
  void Extend(const Ranks& chosen, size_t more) {
    const BlamedLink* open = FirstOpen(chosen);
    if (open == nullptr) {
      if (!best_.has_value() || Weight(chosen) > Weight(*best_)) best_ = chosen;
      return;
    }
    if (more == 0) return;
    for (Rank end : {open->witness, open->suspect}) {
      Ranks longer = chosen;
      longer.insert(end);
      Extend(longer, more - 1);
    }
  }

  const Links& links_;
  const Ranks& marked_;
  std::optional<Ranks> best_;
};

}  // namespace

void Blame::Report(Rank witness, Rank suspect) {
  if (witness == suspect) return;
  const bool known = std::any_of(links_.begin(), links_.end(), [&](const BlamedLink& link) {
    return link.witness == witness && link.suspect == suspect;
  });
  if (!known) links_.push_back({witness, suspect});
}

std::vector<Rank> Blame::Culprits(const std::set<Rank>& marked) const {
  if (links_.empty()) return {};
  Search search(links_, marked);
  const std::optional<Ranks> smallest = search.Smallest(kMaxSearched);
  const Ranks culprits = smallest.has_value() ? *smallest : search.Greedy();
  return {culprits.begin(), culprits.end()};
}

const BlamedLink& Blame::LinkOf(Rank rank) const {
  const auto found = std::find_if(links_.begin(), links_.end(),
                                  [&](const BlamedLink& link) { return Covers({rank}, link); });
  COORDD_CHECK(found != links_.end());
  return *found;
}

}  // namespace coordd
