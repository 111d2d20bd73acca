// The process sets of a generation, what is negotiated in each, and who has joined.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/protocol/types.h"
#include "coordd/v1/session.pb.h"
#include "server/generation/join_state.h"
#include "server/generation/process_sets.h"
#include "server/generation/readiness_table.h"
#include "server/generation/set_negotiation.h"
#include "server/model/byte_budget.h"

namespace coordd {

// PURE; `now` must not decrease. Not thread-safe. One SetNegotiation for each of the process sets
// in which something has been negotiated, and what they have in common: sums, and who has no more
// data in any of them. A job may make a hundred thousand sets, each of which would cost 2 KiB, and
// its next generation takes over all of them.
//
// Once touched sets are settled, it knows which have something to be planned and when one of them
// stalls next, without looking at the others: a job may have thousands of sets.
class NegotiatedSets {
 public:
  struct Options {
    SetNegotiation::Options set;
    absl::Duration stall_warning, stall_abort;
    std::shared_ptr<ByteBudget> budget = nullptr;  // that what is pending takes of
  };
  NegotiatedSets(const std::vector<SessionId>& by_rank,
                 const Options& options);  // which outlives it

  ProcessSets& sets() { return *sets_; }
  const ProcessSets& sets() const { return *sets_; }
  const MemberList& all() const { return sets_->all(); }  // ranks
  JoinState& join() { return join_; }
  const JoinState& join() const { return join_; }
  const ReadinessTotals& totals() const { return totals_; }
  KeptNames& kept() { return totals_.kept; }
  absl::Duration& lag(Rank rank) { return totals_.lag[static_cast<size_t>(rank.value)]; }

  // Adds the negotiation of a set that is in sets(); those of sets that were asked for come by
  // themselves, with the first that looks for one.
  SetNegotiation& Add(ProcessSetId id, bool is_pair = false);
  void Remove(ProcessSetId id);
  SetNegotiation& At(ProcessSetId id);    // REQUIRES: Find finds it
  SetNegotiation* Find(ProcessSetId id);  // nullptr: there is no such set
  int64_t negotiated() const { return static_cast<int64_t>(negotiations_.size()); }
  SetNegotiation& OfAllRanks() { return *of_all_; }
  const SetNegotiation& OfAllRanks() const { return *of_all_; }
  // In which `rank`'s tensor is negotiated. Statuses name the tensor.
  absl::StatusOr<SetNegotiation*> Of(Rank rank, const v1::TensorSpec& tensor);
  // In which what `rank` submits in the set may be: sends and receives are submitted in set 0.
  // Empty: it is no member.
  std::vector<SetNegotiation*> MaybeOf(Rank rank, ProcessSetId id);

  // `rank` has no more data, says join(): so in each of its sets.
  void Join(Rank rank, std::vector<FailedTensor>& failed);
  void EndJoin();  // nobody has joined any more

  // After anything that may have changed what the set waits for, before it is asked for below.
  void Touch(SetNegotiation& set);
  void Settle();
  void Settle(SetNegotiation& set);

  bool has_ready() const { return !abandoned_ && !ready_.empty(); }
  std::set<ProcessSetId> TakeReady() { return std::exchange(ready_, {}); }
  void TakeReady(ProcessSetId id) { ready_.erase(id); }
  // InfiniteFuture: nothing is pending.
  absl::Time NextStall() const;
  SetNegotiation* Stalling(absl::Time now);  // one that does by now; nullptr: none does

  // Pending since `now - age` or earlier, of each set the oldest first, at most `limit`.
  std::vector<PendingTensor> Stalled(absl::Time now, absl::Duration age, size_t limit) const;
  // What `rank` has submitted in the set and is pending.
  std::optional<PendingTensor> Find(Rank rank, ProcessSetId id, absl::string_view name) const;

  // Nobody is told, and what is asked for above is nothing, from now on; what it was takes its
  // memory until it is freed.
  void Abandon();
  int64_t pending() const { return abandoned_ ? 0 : totals_.pending; }
  int64_t stalled() const { return abandoned_ ? 0 : totals_.stalled; }
  // Remains::Free of what was pending. REQUIRES: abandoned.
  int64_t FreePending(int64_t most);
  // Of everything. Nothing else is called then.
  int64_t Free(int64_t most);
  // The next generation is to find sets(), which whoever takes them has to free: Free leaves them.
  std::shared_ptr<ProcessSets> HandOn() {
    handed_on_ = true;
    return sets_;
  }
  void Forgive(absl::Duration gap);
  absl::Status CheckConsistency() const;

 private:
  absl::StatusOr<SetNegotiation*> PairOf(Rank rank, const v1::TensorSpec& tensor);
  absl::StatusOr<SetNegotiation*> NamedBy(Rank rank, ProcessSetId id);
  absl::Time NextStall(const SetNegotiation& set) const {
    return set.table().NextStall(options_.stall_warning, options_.stall_abort);
  }

  const std::vector<SessionId>& by_rank_;
  const Options options_;
  const std::shared_ptr<ProcessSets> sets_;
  JoinState join_;
  ReadinessTotals totals_;
  std::map<ProcessSetId, std::unique_ptr<SetNegotiation>>
      negotiations_;                                         // of some sets_, and of set 0
  SetNegotiation* of_all_;                                   // of set 0
  std::vector<SetNegotiation*> touched_;                     // and not settled
  std::set<ProcessSetId> ready_;                             // have something to be planned
  std::set<std::pair<absl::Time, ProcessSetId>> deadlines_;  // next stalls; not InfiniteFuture
  bool abandoned_ = false, handed_on_ = false;
  ProcessSetId next_freed_{0};  // of sets before it nothing is pending any more
};

}  // namespace coordd
