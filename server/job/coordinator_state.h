// coordd's whole state and every decision, in one class without thread, lock, clock or socket. The
// coordinator thread, the stories, the simulator and the fuzzers all drive exactly this.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/protocol/types.h"
#include "coordd/v1/admin.pb.h"
#include "server/generation/wake_rule.h"
#include "server/job/wrong_tokens.h"
#include "server/model/byte_budget.h"
#include "server/model/durability.h"
#include "server/model/effects.h"
#include "server/model/graveyard.h"
#include "server/model/server_options.h"
#include "server/model/turn.h"

namespace coordd {

class JobState;
struct RestoredState;

// PURE; `now` must not decrease between calls. Not thread-safe: one owner.
class CoordinatorState {
 public:
  // Members of all jobs that a turn gives up for their silence; the others are in the next one.
  static constexpr int64_t kSilentInTurn = 512;

  // Remembers nothing from before and keeps nothing for after: `epoch` is all.
  CoordinatorState(const ServerOptions& options, Epoch epoch);
  // Goes on from what was stored, and stores. `effects` gets what is to be said about it.
  CoordinatorState(const ServerOptions& options, const RestoredState& restored, absl::Time now,
                   Effects& effects);
  ~CoordinatorState();
  CoordinatorState(const CoordinatorState&) = delete;
  CoordinatorState& operator=(const CoordinatorState&) = delete;

  // Any input, in any order, leads to a valid state: what breaks the protocol closes its session
  // with INVALID_ARGUMENT.
  void Step(const Inbound& in, absl::Time now, Effects& effects);

  // What is due by `now`: leases, settling windows, stalls.
  void Tick(absl::Time now, Effects& effects);
  // InfiniteFuture: nothing is due until something comes in; InfinitePast: there is more to do now.
  absl::Time NextDeadline() const;

  // Which ranks have reported, for each job in which something is negotiated, as long as nothing is
  // called.
  std::vector<MembersReports> WhoHasReported() const;

  // Its invariants and those of everything below. Costs as much as the whole state; for tests.
  absl::Status CheckConsistency() const;

  // For operators; `job` empty: all. Fills epoch and jobs.
  void Describe(const std::string& job, absl::Time now, v1::ServerState* state) const;
  // The same of all, in parts of about so many bytes, so that it may take several turns: adds the
  // jobs whose names come behind `after`. Returns the name of the last one that was added; empty:
  // there is none behind it. Each job is as it was at one time, and there once at most.
  static constexpr size_t kDescribedInTurn = size_t{256} << 10;  // about 2 ms of a busy processor
  std::string DescribeNext(const std::string& after, absl::Time now, v1::ServerState* state) const;
  // For `caller`: of all jobs, those that it may see. PERMISSION_DENIED: that is not what it asks
  // for, or there are jobs and it may see none of them.
  absl::Status DescribeTo(const Caller& caller, const v1::GetStateRequest& request, absl::Time now,
                          v1::ServerState* state) const;
  // What was brought as a guess at the tokens of all jobs, which is one guess.
  struct TokenTried {
    absl::string_view token;
    absl::Status may_try;  // UNAVAILABLE: only jobs whose token it is and is hard to guess count
  };
  // How far a caller has been told of all jobs, over several turns.
  struct ToldSoFar {
    std::string after;     // the last job that was looked at; empty: none
    TokenTried tried;      // since the first part
    absl::Status refused;  // why the first that he may not see is not told of
    bool has_begun = false;
  };
  // The same of all jobs in parts, as DescribeNext. Returns whether there is another one to come;
  // `request` lives until then. No part looks at more than kLookedAtInTurn jobs.
  static constexpr int kLookedAtInTurn = 1024;
  absl::StatusOr<bool> DescribeNextTo(const Caller& caller, const v1::GetStateRequest& request,
                                      absl::Time now, ToldSoFar* told,
                                      v1::ServerState* state) const;
  // ToString of who has made the job; empty: nobody whose name is known, or there is no such job.
  std::string OwnerOf(const std::string& job) const;
  // Whether `caller`, who brings `token`, may call this for `job`. PERMISSION_DENIED: who may.
  absl::Status MayCall(const Caller& caller, Call call, const std::string& job,
                       absl::string_view token) const;

 private:
  using Jobs = std::map<std::string, std::unique_ptr<JobState>>;
  struct Joined {
    std::string job;
    std::shared_ptr<const Caller> caller;  // who has brought it; null: not known
  };

  void OnMessage(const SessionMessage& in, const Turn& turn);
  void OnShared(const SharedMessage& in, const Turn& turn);
  bool OnSharedReady(SessionRange from, const v1::WorkerMessage& message, const Turn& turn);
  void OnSessionEnded(const SessionEnded& in, const Turn& turn);
  void OnStreamsLost(const StreamsLost& in, const Turn& turn);
  void RefuseFirstMessage(SessionId session, const Turn& turn);
  void OnJoin(const SessionMessage& in, const Turn& turn);
  absl::Status Admit(const SessionMessage& in, const Turn& turn);
  absl::Status AdmitTo(JobState& job, const SessionMessage& in, const Turn& turn);
  absl::Status MayOwnOneMore(const std::string& owner) const;
  // What MayCall says of each job. `token` is one guess, and a wrong one if it is no job's; after
  // too many of them it is UNAVAILABLE for the jobs that need it.
  void ForAllJobs(
      const Caller& caller, Call call, absl::string_view token,
      absl::FunctionRef<void(const Jobs::value_type&, const absl::Status&)> visit) const;
  TokenTried TryForAll(const Caller& caller, Call call, absl::string_view token) const;
  static absl::Status MayCallHaving(const TokenTried& tried, const Caller& caller, Call call,
                                    const Jobs::value_type& entry);
  static JobClaim ClaimOf(const Jobs::value_type& entry, absl::string_view token);
  static bool TokenMatters(const Caller& caller, Call call, const Jobs::value_type& entry,
                           absl::string_view token);
  static bool IsRightAndHard(const JobState& job, absl::string_view token);
  // UNAVAILABLE: the caller has brought too many wrong tokens for this job, and this one is not
  // both right and hard to guess.
  absl::Status MayTryToken(const std::shared_ptr<const Caller>& caller, const std::string& name,
                           absl::string_view token) const;
  void NoteToken(const std::shared_ptr<const Caller>& caller, const std::string& job,
                 const absl::Status& outcome);
  // What the jobs of this owner may take together, as long as there are any.
  std::shared_ptr<ByteBudget> BudgetOf(const std::string& owner);
  void OnStoreCall(const StoreCall& in, const Turn& turn);
  absl::Status MayTraceOneMore(const JobState& job) const;
  void OnTraceCall(const TraceCall& in, const Turn& turn);
  void OnExits(const ExitsReported& in, const Turn& turn);
  // The job of this name, if there is one, and those that are called after it, in order:
  // "train.group-1f" of members of train, whose launcher knows train alone.
  std::vector<JobState*> WithGroups(const std::string& job) const;
  void OnDismiss(const DismissCall& in, const Turn& turn);
  absl::StatusOr<JobState*> JobMeant(const DismissCall& in) const;
  void OnCancelled(const CallCancelled& in, Effects& effects);
  void OnStop(const StopRequested& in, const Turn& turn);
  void OnPersisted(const Persisted& in, const Turn& turn);
  void Close(SessionId session, const absl::Status& why, Effects& effects);

  // Makes room for one more job by forgetting the one that ended first. False: none has ended.
  bool ForgetOneEnded(Effects& effects);
  void Forget(Jobs::iterator it, Effects& effects);
  // Notices that this process itself was not running, before it blames the workers.
  void NoticeSleep(const Turn& turn);
  // Puts into those of the events from `first` on that tell of a bound who has reached it.
  void NameCaller(const Inbound& in, size_t first, Effects& effects) const;
  // Keeps the indices of sessions and calls true to what was put into `effects` from `first` on.
  void Settle(Effects& effects, size_t first);
  void DropUnheard(Effects& effects, size_t first);

  const ServerOptions options_;
  const Durability durability_;
  const Epoch epoch_;
  Graveyard graveyard_;  // of what jobs have had
  Jobs jobs_;
  std::map<std::string, std::weak_ptr<ByteBudget>> budgets_;  // by owner
  size_t jobs_restored_ = 0;                       // may be more than max_jobs for a while
  absl::flat_hash_map<SessionId, Joined> joined_;  // sessions that are in a job
  std::set<SessionId> gone_;    // whose streams have ended, while their job still counts them
  std::set<SessionId> closed_;  // by us; what they still send is ignored until their end is seen
  std::map<CallId, std::string> job_of_call_;  // calls that wait
  // A job that comes back under the name of a forgotten one must not repeat its generations.
  Generation last_forgotten_;
  absl::Time last_now_ = absl::InfinitePast();
  mutable WrongTokens wrong_tokens_;  // questions bring tokens, too
  bool stopping_ = false;
};

}  // namespace coordd
