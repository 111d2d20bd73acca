// The members of a generation come back, after coordd was started again or has slept: one after the
// other, and nothing happens before all have. docs/design/recovery.md, part B.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/protocol/topology.h"
#include "common/protocol/types.h"
#include "coordd/v1/admin.pb.h"
#include "coordd/v1/records.pb.h"
#include "coordd/v1/session.pb.h"
#include "server/generation/resume_merge.h"
#include "server/job/current_generation.h"
#include "server/job/found_sets.h"
#include "server/job/job_history.h"
#include "server/job/job_messages.h"
#include "server/job/job_workers.h"
#include "server/job/missed_telling.h"
#include "server/job/resume_state.h"
#include "server/model/byte_budget.h"
#include "server/model/durability.h"
#include "server/model/effects.h"
#include "server/model/graveyard.h"
#include "server/model/server_options.h"
#include "server/model/turn.h"

namespace coordd {

// How the generation ends for those who are back, since not all are.
struct ReturnFailure {
  Damage damage = Damage::kLost;
  std::string reason;
  std::vector<v1::Departure> departures = {};
};

// All are back, know together what was said, and have been told it; but for those who have not
// heard of the generation.
struct WholeReturn {
  ResumedGeneration resumed;
  Topology topology;                       // of the ranks as they were
  std::shared_ptr<GenerationState> state;  // restored from `resumed`
};

// PURE; `now` must not decrease. Not thread-safe: one owner, who ends it as soon as it is complete
// or has failed.
//
// Whoever is back is one of the workers and of the generation, and the only one at its rank.
class JobReturn {
 public:
  // All outlive it.
  JobReturn(const ServerOptions& options, const Durability& durability, const JobMessages& messages,
            JobWorkers& workers)
      : options_(options), durability_(durability), messages_(messages), workers_(workers) {}
  JobReturn(const JobReturn&) = delete;
  JobReturn& operator=(const JobReturn&) = delete;

  // What members report beyond what is usual is counted for the owner of the job, from now on, and
  // so are the process sets of the generation.
  void Bind(const std::shared_ptr<ByteBudget>& budget) {
    budget_ = budget;
    words_.Bind(budget == nullptr ? nullptr : budget->words());
  }
  // `found`: the process sets with which it began; null: none.
  void Begin(const v1::JobRecord& record, std::shared_ptr<const FoundSets> found,
             absl::string_view after, absl::Time now);
  bool under_way() const { return state_.has_value(); }
  const std::optional<ResumeState>& state() const { return state_; }
  absl::Time NextDeadline() const {
    if (merging() || disturbed()) return absl::InfinitePast();
    return state_.has_value() ? state_->deadline() : absl::InfiniteFuture();
  }
  std::unique_ptr<Remains> Abandon();  // null: it had nothing

  // coordd was not running for `gap`: for a lease from now on a stream's end excuses its member.
  void Forgive(absl::Duration gap, absl::Time now);
  // Those who had come back have to come again.
  void AskAgain(absl::Time now);
  bool Excuses(absl::Time now) const { return now < excused_until_; }
  // Whether this Join is of a member of the generation that is recorded, whatever is known of its
  // stream. Before it had heard of the generation, perhaps; but the same process with the same id
  // is mostly a mistake, unless coordd has slept.
  // `rank`: in which the worker is, as far as it is known.
  bool IsOfMember(const v1::Join& join, const v1::JobRecord& record, Rank rank) const;

  bool Has(const JobWorker& worker) const {
    return under_way() && worker.generation != Generation{0};
  }
  // A member, or somebody who says that it is one.
  bool Concerns(const v1::Join& join) const {
    return under_way() && (join.has_resume() || state_->Find(join.worker_id()).has_value());
  }

  // REQUIRES of the following: under_way.
  // Another process has come under the id of a member.
  std::optional<ReturnFailure> Replaced(const v1::Join& join) const;
  // FAILED_PRECONDITION: not to this generation. REQUIRES: Concerns, and nobody was Replaced.
  absl::Status Join(SessionId session, const v1::Join& join, const Turn& turn);
  // It has not heard of the generation yet.
  bool IsUnaware(const JobWorker& worker, const v1::WorkerMessage& message) const;
  // What it says. INVALID_ARGUMENT: it breaks the protocol. RESOURCE_EXHAUSTED: its
  // owner's workers have said too much for this, too. `drained`: how it goes if it leaves
  // since it was asked to, where the others go on without it.
  absl::StatusOr<std::optional<ReturnFailure>> OnMessage(SessionId session,
                                                         const v1::WorkerMessage& message,
                                                         const std::optional<std::string>& drained,
                                                         Effects& effects);
  void Drop(SessionId session);  // its stream has ended; it may come again

  // All but these have departed: the generation is over, whoever has heard that, for `reason`.
  void NoteDeparted(const std::set<std::string>& members, const JobHistory& history,
                    const std::string& reason);
  // A launcher tells how a process ended; whether it is of a member, which so is lost. One that has
  // ended well may have said goodbye, of which the others know; one whose end nobody saw may live.
  bool NoteExit(const v1::LaunchedExit& in);

  // Nobody is waited for any more.
  bool complete() const { return under_way() && state_->complete(); }
  // Not all have come in time.
  std::optional<ReturnFailure> Overdue(const Turn& turn);
  // A member has said that the generation is over. REQUIRES: complete.
  std::optional<ReturnFailure> Over() const;
  ReturnFailure CannotGoOn(const absl::Status& why) const;
  std::vector<SessionId> ByRank() const;  // REQUIRES: complete, and not Over
  // Tells each what it lacks. nullopt: there is so much in what they say that it goes on with the
  // next call, which is due at once. INTERNAL: they cannot go on together. REQUIRES: complete, and
  // neither Over nor disturbed.
  std::optional<absl::StatusOr<WholeReturn>> Whole(int64_t entries, const Turn& turn);
  bool merging() const { return under_way() && state_->merging(); }
  // Somebody has come or gone while they were told: they have acted on more by now than they have
  // reported, and have to come again.
  bool disturbed() const { return under_way() && has_told_ && !state_->merging(); }
  // What was put together when somebody came or went is for nothing.
  void BuryEnded(const Turn& turn);
  // It is over; each of the two tells those who are back.
  ResumeBeginning GoOn(WholeReturn& whole, const Turn& turn);
  // Where another generation follows (`reforms`), who has not heard of this one yet hears of it,
  // and of its end, since it may have been in the one before. Returns those who are in it until
  // then.
  struct Present {
    std::vector<SessionId> by_rank;  // 0: it is not
    std::vector<SessionId> sessions;
  };
  Present End(const ReturnFailure& failure, bool reforms, const Turn& turn);

 private:
  std::optional<ReturnFailure> OnLeave(SessionId session, const v1::Leave& leave,
                                       const std::optional<std::string>& drained, Effects& effects);
  class Dropped;
  class EndedMerge;
  absl::Status OnReport(Rank rank, const v1::ResumeReport& part);
  std::vector<SessionId> ToTell(bool is_new) const;
  absl::Status CheckNew(const MissedMessages& missed) const;
  void NoteAllHeard(const absl::StatusOr<Topology>& topology, absl::Time now);
  absl::StatusOr<Topology> TopologyOfRanks() const;
  std::string Who(Rank rank) const;
  v1::Departure DepartureOf(Rank rank, v1::DepartureCause cause, absl::string_view what) const;
  void Add(SessionId session, const v1::Join& join, Rank rank, const Turn& turn);

  const ServerOptions& options_;
  const Durability& durability_;
  const JobMessages& messages_;
  JobWorkers& workers_;
  std::optional<ResumeState> state_;
  // Of which not all is restored, or told; nothing unless merging().
  std::optional<WholeReturn> whole_;
  std::optional<MissedTelling> telling_;                // of whole_
  std::shared_ptr<const v1::CoordinatorMessage> head_;  // of what it tells
  bool has_told_ = false;
  std::shared_ptr<ByteBudget> budget_;
  BudgetShare words_;  // of what state_ takes
  absl::Time excused_until_ = absl::InfinitePast();
};

}  // namespace coordd
