// What one generation of a job negotiates: process sets, readiness, plans in one order per set,
// failures, stalls. It dies with its generation.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/protocol/types.h"
#include "coordd/v1/session.pb.h"
#include "server/generation/device_order.h"
#include "server/generation/join_state.h"
#include "server/generation/lateness.h"
#include "server/generation/process_set_requests.h"
#include "server/generation/process_sets.h"
#include "server/generation/readiness_table.h"
#include "server/generation/resume_merge.h"
#include "server/generation/schedule_detector.h"
#include "server/generation/schedule_table.h"
#include "server/generation/slot_cache.h"
#include "server/generation/wake_rule.h"
#include "server/model/effects.h"
#include "server/model/server_options.h"
#include "server/model/turn.h"

namespace coordd {

// PURE; `now` must not decrease. Not thread-safe.
//
// Implemented in generation_state.cc (what comes in), generation_shared.cc (from several ranks at
// once), generation_sets.cc (process sets and joins),
// generation_plan.cc (what goes out), generation_resume.cc (what was before coordd was started
// again), generation_schedules.cc (what ranks execute without asking)
// and generation_stalls.cc (time, and what operators see).
class GenerationState {
 public:
  struct Identity {
    std::string job;
    Epoch epoch;
    Generation generation;
    bool schedules = false;         // every member executes schedules
    bool device_schedules = false;  // ... of tensors on devices, too
    int64_t slots = 0;  // for the tensors of each process set; 0: a member does not know them
  };
  // `by_rank`: the session of each rank. `options` outlives it.
  GenerationState(Identity identity, const ServerOptions& options, std::vector<SessionId> by_rank);
  // Goes on where its ranks are, as they have reported to a coordd that was started again. Once,
  // before anything else. INTERNAL: they cannot have come there.
  absl::Status Restore(const ResumedGeneration& resumed, absl::Time now);
  // Begins with what the one before has left (Moved). Once, before anything else. REQUIRES: valid.
  void TakeOver(const v1::ProcessSets& sets);
  v1::ProcessSets LeftSets() const { return sets_.Left(requests_.EndedForSome()); }
  GenerationState(const GenerationState&) = delete;
  GenerationState& operator=(const GenerationState&) = delete;

  // REQUIRES of each: the message is within its bounds (validate_message.h).
  // A status breaks the protocol.
  absl::Status OnTensorsReady(Rank rank, const v1::TensorsReady& ready, const Turn& turn);
  // The ranks of several sessions, which report together.
  struct RankGroup {
    ReadinessTable::Reporters reporters;      // in the set of all ranks
    absl::Time heard = absl::InfinitePast();  // for the owner of their leases
  };
  // nullptr: not all of them are members. It stays where it is.
  RankGroup* GroupOf(SessionRange sessions);
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
  bool wants_schedule_finished() const { return device_order_.asks(); }
  // How far it is in what it executes without asking.
  void OnHeartbeat(Rank rank, const v1::Heartbeat& heartbeat, const Turn& turn);
  // What some ranks have executed of a schedule and others have not for too long: nothing can be
  // taken back, the generation has to end. The reason.
  std::optional<std::string> Hopeless(absl::Time now) const;

  // Plans what is ready and tells of stalls. Planning waits for Tick so that everything that came
  // in during one turn of the coordinator is fused together.
  void Tick(const Turn& turn);
  absl::Time NextDeadline() const;  // InfinitePast: something is ready to be planned

  // A member is gone: nothing more is negotiated. What was pending is forgotten.
  void End(Effects& effects);

  void Forgive(absl::Duration gap);

  // For the rule that says when reports are worth a turn.
  MembersReports WhoHasReported() const;

  const Identity& identity() const { return identity_; }
  int32_t size() const { return static_cast<int32_t>(by_rank_.size()); }
  SessionId session_of(Rank rank) const { return by_rank_[static_cast<size_t>(rank.value)]; }
  int64_t batches_planned() const { return batches_planned_; }
  int64_t tensors_planned() const { return tensors_planned_; }
  int64_t bytes_planned() const { return bytes_planned_; }

  // For operators. Sets: without the one of all ranks.
  int64_t pending() const { return totals_.pending; }
  absl::Duration ArrivalLag(Rank rank) const {
    return totals_.lag[static_cast<size_t>(rank.value)];
  }
  int32_t slowest_rank() const { return SlowestRank(totals_.lag); }  // -1: none
  int64_t process_sets() const { return sets_.size(); }
  int64_t pairs() const { return sets_.pairs(); }
  int64_t schedules() const { return schedules_.in_force(); }
  // The schedule of all ranks whose repetitions are the program's steps; lane 0: there is none.
  LaneId StepLane() const { return schedules_.LargestOf(ProcessSetId{0}); }
  bool IsScheduled(LaneId lane) const { return schedules_.InForce(lane); }
  const RankSet& joined() const { return join_.joined(); }
  // Pending since `now - age` or earlier, oldest first, at most `limit`: tensors, and requests for
  // process sets under the name of what they ask for.
  std::vector<PendingTensor> Stalled(absl::Time now, absl::Duration age, size_t limit) const;
  // Others have waited for this rank until a warning was due. Of many that are missing only the
  // first few are.
  bool IsAwaited(Rank rank, absl::Time now) const;
  // Where its program is, a phrase for the errors of those who wait; empty: on its way.
  void SetWhereabouts(Rank rank, std::string where);
  // What `rank` has submitted in `set` (a send or receive: in set 0) and is pending.
  std::optional<PendingTensor> Find(Rank rank, ProcessSetId set, absl::string_view name) const;

  absl::Status CheckConsistency() const;  // its invariants; O(everything)

 private:
  // What is negotiated in one process set, on a lane of its own.
  struct SetState {
    SetState(ProcessSetId set, ProcessSetId named, const MemberList& members,
             const ReadinessBounds& bounds, int64_t schedule_steps, int64_t capacity,
             ReadinessTotals& totals)
        : id(set),
          table(named, members, bounds, totals),
          slots(capacity, table),
          detector(schedule_steps),
          device_detector(schedule_steps) {}

    const ProcessSetId id;
    std::vector<SessionId> sessions;  // of its members
    ReadinessTable table;
    SlotCache slots;
    int64_t slots_forgotten = 0;       // of which an event has told
    ScheduleDetector detector;         // of tensors in host memory
    ScheduleDetector device_detector;  // of tensors on devices: a schedule of their own
    int64_t sequence = 0;              // of the last batch planned
    bool is_pair = false;
    bool announced = false;                        // a pair, before its first plan
    absl::Time deadline = absl::InfiniteFuture();  // its entry in deadlines_
  };

  // What waits for the end of schedules: a join, or the answer to a request for a process set.
  struct Deferred {
    Rank rank;  // that joins
    std::optional<AgreedRequest> agreed;
  };

  // generation_state.cc
  absl::StatusOr<SetState*> SetOf(Rank rank, const v1::TensorSpec& proto);
  absl::StatusOr<SetState*> PairOf(Rank rank, const v1::TensorSpec& proto);
  absl::StatusOr<SetState*> NamedSetOf(Rank rank, ProcessSetId id);
  absl::StatusOr<TensorSpec> Decode(Rank rank, const v1::TensorSpec& proto,
                                    const MemberList& members) const;
  void OnTensor(Rank rank, const v1::TensorSpec& proto, const Turn& turn,
                std::vector<FailedTensor>& failed);
  absl::Status OnCached(Rank rank, const v1::CachedTensors& cached, absl::Time now,
                        std::vector<FailedTensor>& failed);
  void OnKnown(SetState& set, Rank rank, ReadinessTable::Known& known, absl::Time now,
               std::vector<FailedTensor>& failed);
  absl::Status CheckHasData(Rank rank, absl::string_view name) const;
  void OnJoin(Rank rank, const v1::TensorSpec& proto, const Turn& turn,
              std::vector<FailedTensor>& failed);
  SetState& AddSet(ProcessSetId id, ProcessSetId named, const MemberList& members);
  // After anything that may have changed what the set waits for.
  void Touch(SetState& set);
  void TouchTouched();

  // generation_shared.cc
  // What the report says of all its tensors at once, by one rank or a group. False, and nothing has
  // happened: there is more to do than to count. REQUIRES: all are members, and know these slots.
  template <typename Reporters>
  bool CountAlike(SetState& set, const v1::CachedTensors& cached, const Reporters& who,
                  absl::Time now);
  std::vector<ReadinessTable::Known*> SharedSlots(const RankGroup& group,
                                                  const v1::CachedTensors& cached);

  // generation_sets.cc
  std::vector<Rank> RanksBut(const std::vector<Rank>& told) const;
  void Answer(const AgreedRequest& agreed, const Turn& turn);
  absl::StatusOr<ProcessSetId> Apply(const ProcessSetProposal& proposal, const Turn& turn);
  void DeliverRefusals(const std::vector<FailedRequest>& failed, Effects& effects);
  void DeliverChange(const v1::ProcessSetChange& change, std::vector<SessionId> to,
                     Effects& effects);
  void PlanBeforeJoinEnds(const Turn& turn, std::vector<FailedTensor>& failed);
  void Join(Rank rank, const Turn& turn, std::vector<FailedTensor>& failed);
  void EndJoin();

  // generation_plan.cc
  std::shared_ptr<v1::CoordinatorMessage> NewMessage() const;
  // With the next position: for what several ranks are told, who act on it. In the order in which
  // it is sent.
  std::shared_ptr<v1::CoordinatorMessage> NewOrdered();
  void Plan(const Turn& turn);
  void PlanSet(SetState& set, const Turn& turn);
  int64_t FillBatch(SetState& set, const std::vector<ReadyTensor>& ready,
                    const std::vector<size_t>& indices, std::vector<const ReadyTensor*>& unknown,
                    v1::FusedBatch* batch) const;
  void SendPlan(SetState& set, const std::vector<const ReadyTensor*>& unknown,
                std::shared_ptr<v1::CoordinatorMessage> message, Effects& effects);
  void PlanJoin(Rank last, Effects& effects);
  void AnnouncePair(SetState& set, Effects& effects);
  void DeliverFailures(const std::vector<FailedTensor>& failed, Effects& effects) const;
  void NoteFailures(const std::vector<FailedTensor>& failed, Effects& effects) const;
  void Emit(Event::Kind kind, std::string text, int64_t tensors, absl::StatusCode code,
            Effects& effects) const;

  // generation_schedules.cc
  bool schedules_wanted() const { return identity_.schedules && options_.schedule_after_steps > 0; }
  void Observe(SetState& set, const std::vector<ReadyTensor>& ready,
               const std::vector<std::vector<size_t>>& batches);
  void NoteOnDevices(ProcessSetId set, int64_t bytes);
  void MaybeSchedule(SetState& set, Effects& effects);
  void MaybeSchedule(SetState& set, ScheduleDetector& detector, Effects& effects);
  void BreakDeviceSchedule(int64_t bytes_beside, Effects& effects);
  void DeliverSchedule(const ScheduleTable::Schedule& schedule, const std::vector<SessionId>& to,
                       Effects& effects);
  void Freeze(const std::vector<const ScheduleTable::Schedule*>& schedules, absl::string_view why,
              Effects& effects);
  bool MustWait(const Deferred& what) const;
  bool Defer(Deferred what, Effects& effects);
  void RunDeferred(const Turn& turn);
  bool ForgetDeferredJoin(Rank rank);
  bool WithdrawDeferredJoin(Rank rank, absl::string_view reason, std::vector<FailedTensor>& failed);
  void NoteLateness(Rank rank, const v1::Heartbeat& heartbeat);
  void WatchSchedules(const Turn& turn);

  // generation_stalls.cc
  std::string At(Rank rank) const;  // "; rank 1 is at ...", if that is known
  void EmitStall(const PendingTensor& oldest, int64_t count, const Turn& turn) const;
  void WatchStalls(const Turn& turn);
  void WatchTensors(const Turn& turn);
  void WatchRequests(const Turn& turn);
  void WatchJoin(const Turn& turn);
  // After anything that may have ended stalls.
  void NoteStallsEnded(Effects& effects);

  const Identity identity_;
  const ServerOptions& options_;
  const std::vector<SessionId> by_rank_;
  const ReadinessBounds bounds_;

  ProcessSets sets_;
  ProcessSetRequests requests_;
  JoinState join_;
  ScheduleTable schedules_;
  DeviceOrder device_order_;
  ProcessSetId last_on_devices_;  // the last set of which much was planned there
  std::deque<Deferred> deferred_;
  ReadinessTotals totals_;
  std::map<ProcessSetId, std::unique_ptr<SetState>> states_;  // of sets_, and of set 0
  std::vector<SetState*> touched_;                            // since TouchTouched
  std::set<ProcessSetId> ready_;                              // have something to be planned
  std::set<std::pair<absl::Time, ProcessSetId>> deadlines_;   // next stalls; not InfiniteFuture

  int64_t position_ = 0;                                 // of the last NewOrdered
  int64_t reported_by_spec_ = 0, reported_by_slot_ = 0;  // tensors, since the last plan
  int64_t batches_planned_ = 0;
  int64_t tensors_planned_ = 0;
  int64_t bytes_planned_ = 0;
  int64_t stalls_told_ = 0;  // stalled tensors for which no end has been told
  // By the first session and how many they are.
  std::map<std::pair<SessionId, int32_t>, RankGroup> groups_;
  std::map<Rank, std::string> whereabouts_;  // of those who others wait for
  bool ended_ = false;
};

}  // namespace coordd
