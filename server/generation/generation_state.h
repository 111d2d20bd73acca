// What one generation of a job negotiates: process sets, readiness, plans in one order per set,
// failures, stalls. It dies with its generation.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/protocol/types.h"
#include "coordd/v1/session.pb.h"
#include "server/generation/generation_messages.h"
#include "server/generation/generation_plans.h"
#include "server/generation/generation_schedules.h"
#include "server/generation/lateness.h"
#include "server/generation/negotiated_sets.h"
#include "server/generation/process_set_requests.h"
#include "server/generation/rank_groups.h"
#include "server/generation/readiness_table.h"
#include "server/generation/resume_merge.h"
#include "server/generation/sets_left.h"
#include "server/generation/stall_watch.h"
#include "server/generation/wake_rule.h"
#include "server/model/effects.h"
#include "server/model/server_options.h"
#include "server/model/turn.h"

namespace coordd {

// PURE; `now` must not decrease. Not thread-safe.
//
// What it consists of has classes of its own: what each process set negotiates (NegotiatedSets),
// who asks for other sets (ProcessSetRequests), what ranks execute without asking
// (GenerationSchedules), what goes out (GenerationPlans) and what takes too long (StallWatch). It
// lets each message reach those whom it concerns, in that order, until it has ended; then nothing
// does anything any more.
//
// Implemented in generation_state.cc (reports, plans, time) and generation_sets.cc (process sets
// and joins, and what a generation begins with).
class GenerationState {
 public:
  using Identity = GenerationIdentity;
  using RankGroup = coordd::RankGroup;
  // `by_rank`: the session of each rank. `options` outlives it.
  GenerationState(Identity identity, const ServerOptions& options, std::vector<SessionId> by_rank);
  // Goes on where its ranks are, as they have reported to a coordd that was started again. Before
  // anything else, and over turns: each call takes about so many `entries` (of ReportMerge's) of
  // the sets and schedules out of `resumed`, until one returns true. INTERNAL: they cannot have
  // come there.
  absl::StatusOr<bool> Restore(ResumedGeneration& resumed, int64_t entries, absl::Time now);
  // Begins with what the one before has left: first each of its sets, in order, with the ranks that
  // it has here, then the highest number that one has had. REQUIRES: valid.
  void TakeOver(ProcessSetId id, const std::vector<Rank>& ranks);
  void TakeOverNumbers(ProcessSetId last) { sets_.sets().NoteEarlier(ToInt(last)); }
  // What it leaves itself, once it is over.
  SetsLeft HandOn() { return {sets_.HandOn(), requests_.EndedForSome()}; }
  GenerationState(const GenerationState&) = delete;
  GenerationState& operator=(const GenerationState&) = delete;

  // REQUIRES of each: the message is within its bounds (validate_message.h).
  // A status breaks the protocol.
  absl::Status OnTensorsReady(Rank rank, const v1::TensorsReady& ready, const Turn& turn);
  // The ranks of several sessions, which report together. nullptr: not all of them are members. It
  // stays where it is until the next call.
  RankGroup* GroupOf(SessionRange sessions) { return groups_.Find(sessions); }
  // OnTensorsReady of each, with the same reports. False, and nothing has happened, where that may
  // be more than counting: another set than that of all ranks, a rank that has joined, a schedule
  // in force, specs to be read, something that is wrong.
  bool OnSharedReady(const RankGroup& group, const v1::TensorsReady& ready, const Turn& turn);
  void OnTensorsWithdrawn(Rank rank, const v1::TensorsWithdrawn& withdrawn, const Turn& turn);
  // A status breaks the protocol.
  absl::Status OnProcessSetRequest(Rank rank, const v1::ProcessSetRequest& request,
                                   const Turn& turn);

  absl::Status OnScheduleAck(Rank rank, const v1::ScheduleAck& ack);
  absl::Status OnScheduleBreak(Rank rank, const v1::ScheduleBreak& message, Effects& effects);
  absl::Status OnFreezeReply(Rank rank, const v1::FreezeReply& reply, const Turn& turn);
  absl::Status OnScheduleFinished(Rank rank, const v1::ScheduleFinished& finished);
  // Whether ranks are to say that they have finished (Resumed).
  bool wants_schedule_finished() const { return schedules_.wants_finished(); }
  // How far it is in what it executes without asking, in which calls of comms it waits, and what
  // stands on its device. `place`: that and its host, for people.
  void OnHeartbeat(Rank rank, const v1::Heartbeat& heartbeat, const Turn& turn,
                   absl::string_view place = "");
  // What some ranks have executed of a schedule and others have not for too long: nothing can be
  // taken back, the generation has to end. The reason.
  std::optional<std::string> Hopeless(absl::Time now) const;

  // Plans what is ready and tells of stalls. Planning waits for Tick so that everything that came
  // in during one turn of the coordinator is fused together.
  void Tick(const Turn& turn);
  absl::Time NextDeadline() const;  // InfinitePast: something is ready to be planned

  // A member is gone: nothing more is negotiated. What was pending is forgotten.
  void End(Effects& effects);
  // Remains::Free of that, once it has ended; and of everything: nothing else is called then.
  int64_t FreePending(int64_t most) { return sets_.FreePending(most); }
  int64_t Free(int64_t most) { return sets_.Free(most); }

  void Forgive(absl::Duration gap);

  // For the rule that says when reports are worth a turn.
  MembersReports WhoHasReported() const;

  const Identity& identity() const { return messages_.identity(); }
  int32_t size() const { return messages_.size(); }
  SessionId session_of(Rank rank) const { return messages_.session_of(rank); }
  int64_t batches_planned() const { return plans_.batches(); }
  int64_t tensors_planned() const { return plans_.tensors(); }
  int64_t bytes_planned() const { return plans_.bytes(); }

  // For operators. Sets: without the one of all ranks.
  int64_t pending() const { return sets_.pending(); }
  absl::Duration ArrivalLag(Rank rank) const {
    return sets_.totals().lag[static_cast<size_t>(rank.value)];
  }
  int32_t slowest_rank() const { return SlowestRank(sets_.totals().lag); }  // -1: none
  int64_t process_sets() const { return sets_.sets().size(); }
  int64_t pairs() const { return sets_.sets().pairs(); }
  int64_t schedules() const { return schedules_.table().in_force(); }
  // The schedule of all ranks whose repetitions are the program's steps; lane 0: there is none.
  LaneId StepLane() const { return schedules_.table().LargestOf(ProcessSetId{0}); }
  bool IsScheduled(LaneId lane) const { return schedules_.table().InForce(lane); }
  const RankSet& joined() const { return sets_.join().joined(); }
  // Pending since `now - age` or earlier, oldest first, at most `limit`: tensors, requests for
  // process sets under the name of what they ask for, calls of comms, and what stands on devices.
  std::vector<PendingTensor> Stalled(absl::Time now, absl::Duration age, size_t limit) const {
    return stalls_.Stalled(now, age, limit);
  }
  // Others have waited for this rank until a warning was due. Of many that are missing only the
  // first few are.
  bool IsAwaited(Rank rank, absl::Time now) const { return stalls_.IsAwaited(rank, now); }
  // Where its program is, a phrase for the errors of those who wait; empty: on its way.
  void SetWhereabouts(Rank rank, std::string where) {
    stalls_.SetWhereabouts(rank, std::move(where));
  }
  // The call of a comm in which `rank` has waited longest.
  std::optional<PendingTensor> CommWaitOf(Rank rank) const { return comms_.LongestOf(rank); }
  // What stands on its device, a phrase; empty: nothing.
  std::string DeviceStandOf(Rank rank) const { return devices_.StandOf(rank); }
  // What `rank` has submitted in `set` (a send or receive: in set 0) and is pending.
  std::optional<PendingTensor> Find(Rank rank, ProcessSetId set, absl::string_view name) const {
    return sets_.Find(rank, set, name);
  }

  absl::Status CheckConsistency() const;  // its invariants; O(everything)

 private:
  // generation_state.cc
  absl::Status OnCached(Rank rank, const v1::CachedTensors& cached, absl::Time now,
                        std::vector<FailedTensor>& failed);
  void OnKnown(SetNegotiation& set, Rank rank, ReadinessTable::Known& known, absl::Time now,
               std::vector<FailedTensor>& failed);
  void OnTensor(Rank rank, const v1::TensorSpec& proto, absl::Time now,
                std::vector<FailedTensor>& failed);
  absl::StatusOr<TensorSpec> Decode(Rank rank, const v1::TensorSpec& proto,
                                    const MemberList& members) const;
  absl::Status CheckHasData(Rank rank, absl::string_view name) const;
  // To be called behind anything that has come in: fails what it has brought down, and ends what is
  // over with it.
  void Conclude(const std::vector<FailedTensor>& failed, Effects& effects);
  void PlanReady(const Turn& turn);

  // generation_sets.cc
  absl::Status RestoreSet(const ResumedGeneration::Set& set);
  absl::Status OnNamedSetRequest(Rank rank, const v1::ProcessSetRequest& request, const Turn& turn);
  void Answer(const AgreedRequest& agreed, const Turn& turn);
  absl::StatusOr<ProcessSetId> Apply(const AgreedRequest& agreed, const Turn& turn);
  void AnswerDue(const Turn& turn);
  void OnJoin(Rank rank, const v1::TensorSpec& proto, const Turn& turn,
              std::vector<FailedTensor>& failed);
  void Join(Rank rank, const Turn& turn, std::vector<FailedTensor>& failed);
  bool WithdrawJoin(Rank rank, absl::string_view reason, const Turn& turn,
                    std::vector<FailedTensor>& failed);
  void PlanBeforeJoinEnds(const Turn& turn, std::vector<FailedTensor>& failed);

  GenerationMessages messages_;
  NegotiatedSets sets_;
  ProcessSetRequests requests_;
  GenerationSchedules schedules_;
  GenerationPlans plans_;
  CommWaits comms_;
  DeviceWaits devices_;
  StallWatch stalls_;
  RankGroups groups_;
  bool ended_ = false;
};

}  // namespace coordd
