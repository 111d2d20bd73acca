#include "server/job/link_verdict.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "server/job/reforming.h"

namespace coordd {

std::vector<Eviction> PartWith(const Blame& blame, const GenerationState& state,
                               JobWorkers& workers, absl::Time now) {
  std::set<Rank> marked;
  for (int32_t rank = 0; rank < state.size(); ++rank) {
    const JobWorker* const worker = workers.Find(state.session_of(Rank{rank}));
    if (worker != nullptr && now - worker->blamed_at < kFruitfulLife) marked.insert(Rank{rank});
  }
  const auto member = [&](Rank rank) -> JobWorker& { return workers.at(state.session_of(rank)); };
  std::vector<Eviction> evicted;
  for (Rank culprit : blame.Culprits(marked)) {
    const BlamedLink& link = blame.LinkOf(culprit);
    evicted.push_back({state.session_of(culprit),
                       absl::StrCat("was evicted: nothing comes over the network from ",
                                    Who(member(link.suspect)), " to ", Who(member(link.witness)),
                                    ", which both live")});
  }
  for (const BlamedLink& link : blame.links())
    for (Rank end : {link.witness, link.suspect}) member(end).blamed_at = now;
  return evicted;
}

}  // namespace coordd
