// coordd's state and the states of n workers, with messages that take their time: what schedules
// are worth is that no order of events makes two ranks execute different things.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/random.h"
#include "tests/sim/coordd_model.h"
#include "worker/protocol/worker_state.h"

namespace coordd {

// One thing that a program does. Every rank has a program of its own; programs that belong
// together submit the same collectives.
struct SimOp {
  enum class Kind { kSubmit, kWait, kJoin, kAddSet, kRemoveSet };
  Kind kind = Kind::kSubmit;
  std::vector<TensorSpec> tensors = {};  // kSubmit: one, or a whole group
  std::vector<int32_t> ranks = {};       // kAddSet
  ProcessSetId set = {};                 // kRemoveSet
};
using SimProgram = std::vector<SimOp>;

// Mistakes that the simulator must notice.
enum class PlantedBug {
  kNone,
  kCutTooEarly,         // the cut is one position less
  kLaunchesWhenFrozen,  // a rank answers that it is frozen and goes on
  kReportNotDropped,    // coordd counts a report that crossed the Schedule
  kNoBreak,             // a batch that stays incomplete breaks nothing
  kForgetsSlotsEarly,   // a rank keeps one slot less than coordd gives out
  kMeansAnotherSlot,    // a rank reports the tensor beside the one that it has submitted
  kJoinNotTakenBack,    // a join comes before what was submitted before it and a cut gives back
  kNotStaged,           // what is planned beside a schedule of tensors on devices is NCCL's, too
  // Of a coordd that is started again:
  kPlansBeforeAllAreBack,  // it does not wait for the last member
  kGenerationsStartAnew,   // it has forgotten their numbers
  kNoFencing,              // a rank takes what an earlier coordd said for the new one's
  kMissedNotTold,          // who lacks something that others have heard is not told
  kUnansweredNotReported,  // a rank that is back does not report what has no answer
};

// What else goes wrong.
struct SimFaults {
  int64_t crashes = 0;  // of coordd, which is started again on its state
  int64_t breaks = 0;   // of streams of ranks that are coming back
};

class ScheduleSim {
 public:
  using Log = std::function<void(absl::string_view line)>;
  ScheduleSim(uint64_t seed, std::vector<SimProgram> programs, PlantedBug bug = PlantedBug::kNone,
              SimFaults faults = {}, Log log = nullptr);

  // Until all programs have ended. INTERNAL: what went wrong, and when.
  absl::Status Run();

  int64_t scheduled_batches() const {
    return scheduled_batches_;
  }  // launched on lanes of schedules
  int64_t negotiated_batches() const { return negotiated_batches_; }
  // Of tensors on devices: by NCCL on lanes of schedules; planned to be staged.
  int64_t scheduled_by_nccl() const { return scheduled_by_nccl_; }
  int64_t staged() const { return staged_; }
  int64_t schedules() const { return static_cast<int64_t>(schedules_.size()); }
  int64_t cuts() const { return static_cast<int64_t>(cuts_.size()); }
  int64_t reports() const { return reports_; }  // messages with tensors
  // Those with tensors by slot: in all, and to a coordd that was started again.
  int64_t by_slot() const { return by_slot_; }
  int64_t by_slot_after_crash() const { return by_slot_after_crash_; }
  absl::Duration longest_wait() const { return longest_wait_; }
  int64_t crashes() const { return crashes_; }
  int64_t missed() const { return missed_; }          // messages that were told again
  int64_t while_away() const { return while_away_; }  // batches launched without coordd

 private:
  using BatchKey = std::pair<LaneId, int64_t>;
  struct Submitted {
    std::string name;      // with its set
    int64_t instance = 0;  // how often this rank has submitted it, since it joined last
    absl::Time at;
    MemoryKind memory = MemoryKind::kHost;
  };
  struct RankState {
    std::unique_ptr<WorkerState> worker;
    size_t next_op = 0;
    std::map<TensorId, Submitted> open;
    std::map<std::string, int64_t> instances;
    std::map<LaneId, std::map<int64_t, LaunchBatch::Tensors>> launched;
    int64_t last_id = 0;
    int64_t joins = 0;
    int64_t asked = 0;                     // open questions about process sets
    std::optional<int64_t> frozen_by_bug;  // the schedule
    int64_t joins_left_by_bug = 0;         // with coordd, which was to be told of them again
    std::deque<BatchKey> device;           // what NCCL has to execute, one behind the other
  };
  // What a batch is, as the first rank that launched it saw it.
  struct Batch {
    std::vector<std::string> tensors;  // name and instance; the instance of an absent one is open
    std::map<std::string, int64_t> instances;
    ProcessSetId set;
    std::set<int32_t> launched, done;
    bool by_nccl = false;
  };

  absl::Status Step();
  absl::Status PassTime();
  absl::Status ToCoordd(int32_t rank);
  absl::Status ToWorker(int32_t rank);
  absl::Status RunProgram(int32_t rank);
  bool Blocked(const RankState& rank) const;
  bool Finished() const;
  absl::Status FinishBatch();
  bool CanEnd(const BatchKey& key, const Batch& batch) const;
  absl::Status Turn(int32_t rank, WorkerEvent event);
  void TickWorker(RankState& state, std::vector<WorkerEffect>& out);
  absl::Status Take(int32_t rank, std::vector<WorkerEffect> effects);
  absl::Status OnLaunch(int32_t rank, const LaunchBatch& launch);
  bool OnSaid(int32_t rank, v1::CoordinatorMessage& message, bool current);
  void LeaveJoin(RankState& state, v1::WorkerMessage& message);
  absl::Status AnswerAndGoOn(int32_t rank, const v1::CoordinatorMessage& freeze);
  bool HasNews(int32_t rank);

  // schedule_sim_faults.cc
  CoorddModel::Hooks CoorddHooks(Log log);
  absl::Status BreakStream(int32_t rank);
  absl::Status EndStream(int32_t rank);
  v1::Join JoinFor(int32_t rank) const;
  absl::Status StrayMessage(int32_t rank);
  bool all_are_back() const;
  std::vector<int32_t> Members(ProcessSetId set) const;

  const PlantedBug bug_;
  const SimFaults faults_;
  Random random_;
  std::vector<SimProgram> programs_;
  std::vector<RankState> ranks_;
  CoorddModel coordd_;
  std::map<ProcessSetId, std::vector<int32_t>> sets_;
  std::map<BatchKey, Batch> batches_;
  std::set<int64_t> schedules_, cuts_;  // by id
  int64_t scheduled_batches_ = 0, negotiated_batches_ = 0, reports_ = 0;
  int64_t scheduled_by_nccl_ = 0, staged_ = 0;
  int64_t by_slot_ = 0, by_slot_after_crash_ = 0;
  int64_t crashes_ = 0, breaks_ = 0, missed_ = 0, while_away_ = 0;
  absl::Duration longest_wait_;
};

}  // namespace coordd
