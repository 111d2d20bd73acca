// The schedules that are in force in a generation, how they end, and who is behind in them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/protocol/protocol_bounds.h"
#include "common/protocol/types.h"
#include "coordd/v1/session.pb.h"
#include "server/generation/lateness.h"
#include "server/generation/readiness_table.h"
#include "server/generation/schedule_detector.h"
#include "server/members/rank_set.h"

namespace coordd {

// A schedule that has been cut: its lane ends behind `position` on every rank.
struct ScheduleCut {
  int64_t id = 0;
  ProcessSetId process_set;
  int64_t position = 0;
  bool was_of_use = false;  // it saved more messages than its beginning and end cost
  bool on_devices = false;
};

// PURE; `now` must not decrease. Not thread-safe. docs/design/schedules.md tells how a schedule
// begins and ends.
//
// Safety in one sentence: all ranks execute a batch if and only if its position is at most the cut,
// because no rank launches between its FreezeReply and the Cut, and the cut is no smaller than what
// any rank had launched.
class ScheduleTable {
 public:
  // Of what it keeps of a schedule (KeptNames).
  static int64_t CostOf(const ScheduleBatches& batches);

  // How many schedules of one generation are in force; beyond it tensors stay negotiated.
  static constexpr size_t kMaxInForce = 128;

  struct Schedule {
    explicit Schedule(const MemberList& of)
        : members(&of),
          acknowledged(of),
          replied(of),
          positions(static_cast<size_t>(of.size())),
          ranks_at{{0, of.size()}} {}

    int64_t id = 0;
    LaneId lane;
    ProcessSetId process_set;
    ScheduleBatches batches;
    KeptNames::Hold kept;
    const MemberList* members;
    RankSet acknowledged;
    RankSet replied;
    bool breaking = false;  // Freeze was sent
    int64_t launched = 0;   // the largest that a reply has named
    std::optional<int64_t> cut;

    // By position in the set: what heartbeats say. Behind the cut: finished.
    std::vector<int64_t> positions;
    std::map<int64_t, int32_t>
        ranks_at;        // how many say each position: a heartbeat looks at no other
    int64_t behind = 0;  // the smallest of positions
    absl::Time behind_since = absl::InfiniteFuture();
    bool stall_told = false;
    std::unique_ptr<CycleLateness> lateness;
  };

  // `names` counts what it keeps, and outlives it.
  explicit ScheduleTable(KeptNames& names) : names_(names) {}

  bool HasRoom() const { return schedules_.size() < kMaxInForce && last_id_ < kMaxSchedules; }
  // The names are counted, also where they are more than may be kept.
  // REQUIRES: HasRoom; none of the tensors is in another schedule of the set that is in force.
  // `members` outlives it.
  const Schedule& Begin(ProcessSetId process_set, const MemberList& members,
                        ScheduleBatches batches);

  // One that was in force before coordd was started again, and that all members have heard of.
  // `frozen`: the members will say how far they have come. INVALID_ARGUMENT: it cannot have been.
  absl::Status Restore(int64_t id, ProcessSetId process_set, const MemberList& members,
                       ScheduleBatches batches, bool frozen);
  void SkipNumbersUpTo(int64_t id) { last_id_ = std::max(last_id_, id); }

  // A report by `rank` that is to be dropped: it crossed the Schedule, which took the tensor along.
  bool Supersedes(ProcessSetId process_set, Rank rank, absl::string_view name) const;
  // INVALID_ARGUMENT of these: it was not asked for.
  absl::Status Acknowledge(Rank rank, int64_t id);
  absl::Status CheckBreak(Rank rank, int64_t id);
  // The cut, once the last member has replied.
  absl::StatusOr<std::optional<ScheduleCut>> Reply(Rank rank, int64_t id, int64_t launched);

  // The schedules that have to be frozen now, which then count as frozen.
  std::vector<const Schedule*> Break(int64_t id);
  std::vector<const Schedule*> BreakSet(ProcessSetId process_set);
  std::vector<const Schedule*> BreakRank(Rank rank);
  // Whether one that is not cut concerns the set or the rank.
  bool InForce(ProcessSetId process_set) const;
  bool InForce(Rank rank) const;
  bool InForce(LaneId lane) const;
  bool InForce(ProcessSetId process_set, absl::string_view name) const;

  // What a heartbeat of `rank` says about lanes of schedules: (lane, launched).
  void Heartbeat(Rank rank, const std::map<LaneId, int64_t>& launched, absl::Time now);
  // What it says about the time in them. A window: who came how late, by position among `members`.
  std::optional<CycleLateness::Window> Told(Rank rank, LaneId lane, const v1::LaneMark& mark,
                                            const MemberList*& members);
  // Some ranks have been behind since `now - age` or earlier, oldest first; the tensor is the first
  // one of the batch that they lack. `newly`: each once.
  std::vector<PendingTensor> Stalled(absl::Time now, absl::Duration age) const;
  std::vector<PendingTensor> NewlyStalled(absl::Time now, absl::Duration age);
  int64_t stalled() const;  // told by NewlyStalled and still behind
  absl::Time NextStall(absl::Duration warning, absl::Duration abort) const;
  void Forgive(absl::Duration gap);

  void EndSet(ProcessSetId process_set);  // forgets what is left of its schedules
  void Clear() { schedules_.clear(), by_name_.clear(); }
  int64_t in_force() const;
  // The lane of the set's schedule with most tensors, of those that are in force; 0: there is none.
  LaneId LargestOf(ProcessSetId process_set) const;
  bool empty() const { return schedules_.empty(); }
  absl::Status CheckConsistency() const;

 private:
  static constexpr int64_t kMaxPosition = int64_t{1} << 60;  // centuries of batches

  absl::StatusOr<Schedule*> Find(Rank rank, int64_t id);
  template <typename Condition>
  std::vector<const Schedule*> BreakIf(Condition condition);
  static void NotePosition(Schedule& schedule, size_t index, int64_t position, absl::Time now);
  PendingTensor Describe(const Schedule& schedule) const;
  void ForgetNames(const Schedule& schedule);

  KeptNames& names_;
  int64_t last_id_ = 0;
  std::map<int64_t, Schedule> schedules_;  // also those that are cut and not executed up to the cut
  std::map<ProcessSetId, absl::flat_hash_map<std::string, int64_t>> by_name_;  // not cut
};

}  // namespace coordd
