// The schedules of a generation at one rank: batches that are launched without asking coordd.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/protocol/types.h"
#include "coordd/v1/session.pb.h"
#include "worker/protocol/coordinator_session.h"
#include "worker/protocol/cycle_marks.h"
#include "worker/protocol/launched_batches.h"
#include "worker/protocol/pending_tensors.h"
#include "worker/protocol/process_set_state.h"
#include "worker/protocol/scheduled_lane.h"
#include "worker/protocol/turn.h"
#include "worker/protocol/worker_events.h"

namespace coordd {

// A batch of a schedule was planned at once when it was found, so its tensors come close together.
// When something waits on a schedule's lane and nothing more has come for this long, the program
// does something else than it did: the schedule is broken. Too short costs a round trip, no error.
inline constexpr absl::Duration kScheduleSilence = absl::Milliseconds(250);
// The same when the program blocks on a tensor of the lane: another of its threads may still
// submit. Whether it does is asked after this time, and again after twice, four times, … as long.
inline constexpr absl::Duration kBlockedSilence = absl::Milliseconds(5);

// PURE; part of WorkerState, one per generation. docs/design/schedules.md.
//
// A tensor of a schedule is not pending: its lane holds it until the batch is launched, or until
// the schedule is cut and it is pending after all.
//
// Invariant: a name that is found leads to a slot of a lane that is in force, or cut and not
// executed up to the cut.
class ScheduledWork {
 public:
  // What a call may use and change besides the schedules.
  struct Context {
    const WorkerTurn& turn;
    PendingTensors& pending;
    LaunchedBatches& launched;
    const CoordinatorSession& session;
    bool leaving = false;  // this rank launches nothing more
  };
  struct Scheduled {
    std::unique_ptr<ScheduledLane> lane;
    std::unique_ptr<CycleMarks> marks;
    bool broken = false;         // coordd has been told
    std::string why;             // it was broken
    bool frozen = false;         // coordd has asked for it
    bool set_has_ended = false;  // nothing can be launched any more
    int64_t position = 0;        // of its announcement
    int64_t staged = 0;          // batches, on devices, since one of the lane was launched
    // Whether somebody waits for what the lane holds, silent since then, is asked next.
    absl::Time silent_since = absl::InfiniteFuture();
    absl::Duration next_question = kBlockedSilence;
  };
  using Lanes = std::map<LaneId, Scheduled>;
  // The generation cannot go on.
  struct Fault {
    absl::Status why;  // INTERNAL: coordd contradicts itself
    BatchKey batch;    // what other ranks execute, and this one cannot
    std::string tensor;
  };

  // --- what coordd says ---
  // INTERNAL: it is no schedule. `position`: of the message; `size`: of the generation.
  absl::Status OnSchedule(const v1::Schedule& schedule, const ProcessSetState& sets, int32_t size,
                          int64_t position, const Context& context);
  absl::Status OnFreeze(const v1::Freeze& freeze, const Context& context);
  std::optional<Fault> OnCut(const v1::Cut& cut, const Context& context);
  // INTERNAL: a schedule of the set is in force.
  absl::Status OnSetEnded(ProcessSetId ended);
  // The set of a schedule that is there; 0: there is none.
  ProcessSetId SetOf(int64_t id) const;
  // The rest of a schedule that has come in part will not come.
  // Of all its parts. coordd's have 16,384 tensors at most.
  static constexpr size_t kMaxScheduleBytes = size_t{32} << 20;
  void ForgetIncoming() { incoming_.Clear(); }

  // --- what the program does ---
  // Takes the tensor if it belongs to a schedule; whether it does. REQUIRES: not empty().
  bool Take(SubmittedTensor& tensor, const Context& context, std::optional<Fault>& fault);
  // This rank has joined, and may not have come to the cut of schedules.
  void Fill(const Context& context);
  void OnProgramWaits(TensorId id, const Context& context);
  // A batch of tensors on devices was staged.
  void NoteStaged(const Context& context);

  // --- time ---
  // UNAVAILABLE: a tensor was given up, and its schedule was not cut.
  absl::Status Tick(const Context& context);
  absl::Time NextDeadline() const;
  // Whether a thread of the program waits for one of these, asked by the last Tick.
  const std::vector<TensorId>& question() const { return question_; }
  void ClearQuestion() { question_.clear(); }

  // --- ends ---
  // Nothing is launched any more; what is held fails.
  void Leave(const absl::Status& why, const WorkerTurn& turn);
  void FailAll(const absl::Status& why, const WorkerTurn& turn);
  // The lanes end with their generation; what they hold is pending.
  void MoveTo(PendingTensors& pending);

  // For another coordd: what has no answer.
  void ReportAnew(const Context& context) const;
  void SendFinished(int64_t id, const Context& context) const;

  bool empty() const { return lanes_.empty(); }
  int64_t held() const;
  // Whether a schedule is frozen and not cut.
  bool AwaitsCut() const;
  bool HasDeviceLane() const;
  Lanes& lanes() { return lanes_; }
  const Lanes& lanes() const { return lanes_; }
  const Scheduled* Find(LaneId lane) const;
  void NoteMark(BatchKey key, const LaunchedBatch& batch, absl::Time ended_at);
  int64_t last_id() const { return last_id_; }

 private:
  struct Slot {
    ScheduledLane* lane = nullptr;
    size_t slot = 0;
  };

  absl::StatusOr<std::vector<std::vector<TensorSpec>>> BatchesOf(const v1::Schedule& schedule,
                                                                 const ProcessSetState& sets,
                                                                 int32_t size) const;
  absl::Status Begin(const ProcessSetState& sets, int32_t size, int64_t position,
                     const Context& context);
  std::optional<Slot> FindSlot(const SharedSpec& spec);
  ScheduledLane* FindLane(int64_t id);
  std::optional<Fault> TakeInto(ScheduledLane& lane, size_t slot, HeldTensor tensor,
                                const Context& context);
  void Launch(ScheduledLane& lane, const Context& context);
  void LaunchBatchOf(const ScheduledLane& lane, ScheduledLane::Batch batch, const Context& context);
  void Break(ScheduledLane& lane, absl::string_view why, const Context& context);
  void BreakForSilence(ScheduledLane& lane, const Context& context);
  void RetireIfFinished(LaneId id, const Context& context);
  void CheckSilence(Scheduled& scheduled, const Context& context);
  absl::Status CheckDeadlines(ScheduledLane& lane, const Context& context);

  Lanes lanes_;                                 // in force, or cut and not executed up to the cut
  absl::flat_hash_map<TensorKey, Slot> slots_;  // names: those of the lanes' specs
  v1::Schedule incoming_;                       // until its last part is here
  std::vector<TensorId> question_;
  int64_t last_id_ = 0;  // the highest that coordd has used
};

}  // namespace coordd
