// How ranks agree on new process sets and on the end of old ones.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/protocol/types.h"
#include "server/generation/named_set_requests.h"
#include "server/generation/process_set_proposal.h"
#include "server/members/rank_set.h"
#include "server/model/byte_budget.h"

namespace coordd {

// PURE; `now` must not decrease. Not thread-safe. The n-th request of one rank is matched with the
// n-th of all others. Each is answered once: agreed upon, or failed for every rank that has made it
// and for the others when they do. A rank that has joined makes none, so that nothing can be agreed
// upon until all have: what is asked meanwhile fails at once, also for the ranks that have joined,
// as if they had asked. So everybody's next request is the same one again when the join has ended.
// Those with a name are apart, and in no order with these.
class ProcessSetRequests {
 public:
  // Requests that some ranks have made and others have not. A caller waits for each answer, so that
  // more than a few are those of a rank whose deadlines pass again and again.
  static constexpr size_t kMaxOpen = 256;

  // `all` outlives it. They take of `budget`, of the job's owner; null: without a bound.
  explicit ProcessSetRequests(const MemberList& all, std::shared_ptr<ByteBudget> budget = nullptr)
      : all_(all), last_(static_cast<size_t>(all.size())), share_(budget), named_(budget) {}

  // From before coordd was started again: by rank, up to which number its requests are answered.
  // One that is answered for some only has failed for all, but for the `removals`, of which the
  // others ask anew. REQUIRES: nothing was requested yet.
  void Restore(const std::vector<int64_t>& answered,
               const std::map<int64_t, ProcessSetId>& removals, absl::Time now);

  // The sets of whose end some ranks have heard and the others have not asked yet.
  std::vector<ProcessSetId> EndedForSome() const;

  // A status breaks the protocol (numbers with a gap; too many open): the session ends with it.
  // What there is no room for fails for all: RESOURCE_EXHAUSTED.
  // `joined`: each was given to Joined since it has joined.
  absl::Status Request(Rank rank, int64_t number, const ProcessSetProposal& proposal,
                       const RankSet& joined, absl::Time now, std::optional<AgreedRequest>& agreed,
                       std::vector<FailedRequest>& failed);
  // `rank` no longer waits: CANCELLED for all. Nothing if it was answered already.
  absl::Status Withdraw(Rank rank, int64_t number, std::vector<FailedRequest>& failed);
  NamedSetRequests& named() { return named_; }

  // Of these, and of those with a name.
  // What `rank` has not asked for fails with FAILED_PRECONDITION.
  void Joined(Rank rank, std::vector<FailedRequest>& failed);
  // What is open since `now - age` or earlier fails with DEADLINE_EXCEEDED.
  void FailOlderThan(absl::Time now, absl::Duration age, std::vector<FailedRequest>& failed);

  // Open since `now - age` or earlier, each once.
  std::vector<PendingRequest> NewlyStalled(absl::Time now, absl::Duration age);
  std::vector<PendingRequest> Stalled(absl::Time now, absl::Duration age) const;
  // When NewlyStalled or FailOlderThan finds something.
  absl::Time NextStall(absl::Duration warning, absl::Duration abort) const;
  void Forgive(absl::Duration gap);

  absl::Status CheckConsistency() const;

 private:
  struct Open {
    ProcessSetProposal proposal;  // the first rank's
    Rank first_rank;
    absl::Time since;
    RankSet in;
    std::optional<TensorFault> fault;  // failed: what the others will hear
    std::vector<Rank> told;            // have heard that it was agreed upon
    bool warned = false;
    int64_t bytes = 0;  // as counted
  };

  int64_t BytesOf(const ProcessSetProposal& proposal) const;
  void Count(Open& open, int64_t bytes);
  Open& At(int64_t number) { return open_[static_cast<size_t>(number - first_)]; }
  void Fail(int64_t number, absl::Status status, Rank blamed, std::vector<FailedRequest>& failed);
  PendingRequest Describe(int64_t number) const;
  void DropAnswered();

  const MemberList& all_;
  std::vector<int64_t> last_;  // by rank: number of its last request
  std::deque<Open> open_;      // each rank makes them in order, so they are answered in order
  int64_t first_ = 1;          // number of the first open one
  int64_t bytes_ = 0;          // of open_
  BudgetShare share_;
  NamedSetRequests named_;
};

}  // namespace coordd
