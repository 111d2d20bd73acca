// How the members of a process set that has a name agree on it, and on its end, without the others.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/protocol/types.h"
#include "server/generation/process_set_proposal.h"
#include "server/members/member_list.h"
#include "server/members/rank_set.h"
#include "server/model/byte_budget.h"

namespace coordd {

// PURE; `now` must not decrease. Not thread-safe. Requests of one name belong together, in
// whichever order a rank makes those of different names. Each is answered once: agreed upon when
// the last member has made it, or failed for all who have; members who have not hear of that when
// they do, unless one that has heard of it asks under the name again: then they are asked for that.
class NamedSetRequests {
 public:
  // Names at a time that some members have asked for and others have not, and the members of them
  // all: 64 MiB of rank numbers, as of the sets that there are.
  static constexpr size_t kMaxOpen = 4096;
  static constexpr int64_t kMaxMembers = int64_t{1} << 24;

  // They take of `budget`, of the job's owner; null: without a bound.
  explicit NamedSetRequests(std::shared_ptr<ByteBudget> budget = nullptr)
      : share_(std::move(budget)) {}

  // REQUIRES: ProcessSets would carry it out (CheckNamed); `members`: of the set, in order.
  // INVALID_ARGUMENT breaks the protocol: the rank has asked already and waits for the answer.
  // `joined`: each was given to Joined since it has joined.
  absl::Status Request(Rank rank, const ProcessSetProposal& proposal, std::vector<Rank> members,
                       const RankSet& joined, absl::Time now, std::optional<AgreedRequest>& agreed,
                       std::vector<FailedRequest>& failed);
  // A rank has no more data: what it is a member of fails with FAILED_PRECONDITION.
  void Joined(Rank rank, std::vector<FailedRequest>& failed);
  // `rank` no longer waits: CANCELLED for all. Nothing if it was answered already.
  void Withdraw(Rank rank, const std::string& name, std::vector<FailedRequest>& failed);
  // What is open since `now - age` or earlier fails with DEADLINE_EXCEEDED.
  void FailOlderThan(absl::Time now, absl::Duration age, std::vector<FailedRequest>& failed);

  // Open since `now - age` or earlier: each once, or all.
  void NewlyStalled(absl::Time now, absl::Duration age, std::vector<PendingRequest>& stalled);
  void Stalled(absl::Time now, absl::Duration age, std::vector<PendingRequest>& stalled) const;
  // When NewlyStalled or FailOlderThan finds something.
  absl::Time NextStall(absl::Duration warning, absl::Duration abort) const;
  void Forgive(absl::Duration gap);

  size_t size() const { return open_.size(); }  // with the failed ones that members are owed
  absl::Status CheckConsistency() const;

 private:
  struct Open {
    Open(const ProcessSetProposal& first, Rank rank, std::vector<Rank> ranks, absl::Time now)
        : proposal(first),
          first_rank(rank),
          since(now),
          members(std::move(ranks)),
          in(members),
          owed(members) {}
    Open(const Open&) = delete;
    Open& operator=(const Open&) = delete;

    const ProcessSetProposal proposal;  // the first rank's
    const Rank first_rank;
    absl::Time since;
    const MemberList members;
    RankSet in;
    std::optional<TensorFault> fault;  // failed
    RankSet owed;                      // who then has not heard of it yet
    std::vector<Rank> others;          // the same, who are no members; in order
    bool warned = false;

    bool TakeOwed(Rank rank);  // whether it was
    bool is_told() const { return owed.empty() && others.empty(); }
    int64_t ranks() const { return members.size() + static_cast<int64_t>(others.size()); }
    int64_t bytes() const;
  };
  using Requests = std::map<std::string, Open>;

  // Whether that was an answer to an older request of this name.
  bool TakeOwed(Rank rank, const std::string& name, std::vector<FailedRequest>& failed);
  absl::Status CheckRoom(const ProcessSetProposal& proposal, size_t members);
  bool IsFull(int64_t members, int64_t bytes) const;
  void Differs(Rank rank, const ProcessSetProposal& proposal, Requests::iterator found,
               std::vector<FailedRequest>& failed);
  // `also`: who hears of it beside those who are in.
  void Fail(const std::string& name, Open& open, const absl::Status& status, Rank blamed,
            std::vector<FailedRequest>& failed, std::optional<Rank> also = std::nullopt);
  static PendingRequest Describe(const Open& open);
  void Count(const Open& open, int64_t times);
  Requests::iterator Erase(Requests::iterator request);

  Requests open_;
  std::set<std::string> failed_;  // of them: what makes room
  int64_t members_ = 0;           // of them all, with those of others
  int64_t bytes_ = 0;
  BudgetShare share_;
};

}  // namespace coordd
