// coordd's state and the states of n workers, with messages that take their time: what schedules
// are worth is that no order of events makes two ranks execute different things.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/random.h"
#include "server/coordinator_state.h"
#include "server/invariants.h"
#include "worker/worker_state.h"

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
};

class ScheduleSim {
 public:
  ScheduleSim(uint64_t seed, std::vector<SimProgram> programs, PlantedBug bug = PlantedBug::kNone);

  // Until all programs have ended. INTERNAL: what went wrong, and when.
  absl::Status Run();

  int64_t scheduled_batches() const {
    return scheduled_batches_;
  }  // launched on lanes of schedules
  int64_t negotiated_batches() const { return negotiated_batches_; }
  int64_t schedules() const { return schedules_; }
  int64_t cuts() const { return cuts_; }
  int64_t reports() const { return reports_; }  // messages with tensors
  absl::Duration longest_wait() const { return longest_wait_; }

 private:
  struct Submitted {
    std::string name;      // with its set
    int64_t instance = 0;  // how often this rank has submitted it, since it joined last
    absl::Time at;
  };
  struct RankState {
    SessionId session;
    std::unique_ptr<WorkerState> worker;
    std::deque<v1::WorkerMessage> to_coordd;
    std::deque<v1::CoordinatorMessage> from_coordd;
    int64_t sequence = 0;  // of messages from coordd
    size_t next_op = 0;
    std::map<TensorId, Submitted> open;
    std::map<std::string, int64_t> instances;
    std::map<LaneId, std::map<int64_t, std::vector<TensorId>>> launched;
    int64_t last_id = 0;
    int64_t joins = 0;
    int64_t asked = 0;                     // open questions about process sets
    std::optional<int64_t> frozen_by_bug;  // the schedule
  };
  // What a batch is, as the first rank that launched it saw it.
  struct Batch {
    std::vector<std::string> tensors;  // name and instance; the instance of an absent one is open
    std::map<std::string, int64_t> instances;
    ProcessSetId set;
    std::set<int32_t> launched, done;
  };

  absl::Status Step();
  absl::Status ToCoordd(int32_t rank);
  absl::Status ToWorker(int32_t rank);
  absl::Status RunProgram(int32_t rank);
  bool Blocked(const RankState& rank) const;
  bool Finished() const;
  absl::Status FinishBatch();
  absl::Status Turn(int32_t rank, WorkerEvent event);
  void TickWorker(RankState& state, std::vector<WorkerEffect>& out);
  absl::Status Take(int32_t rank, std::vector<WorkerEffect> effects);
  absl::Status OnLaunch(int32_t rank, const LaunchBatch& launch);
  absl::Status TakeCoordd(Effects effects);
  void Deliver(RankState& to, v1::CoordinatorMessage message);
  std::vector<int32_t> Members(ProcessSetId set) const;

  const PlantedBug bug_;
  Random random_;
  absl::Time now_;
  std::unique_ptr<CoordinatorState> coordd_;
  HistoryChecker history_;
  std::vector<SimProgram> programs_;
  std::vector<RankState> ranks_;
  std::map<ProcessSetId, std::vector<int32_t>> sets_;
  std::map<std::pair<LaneId, int64_t>, Batch> batches_;
  int64_t scheduled_batches_ = 0, negotiated_batches_ = 0, schedules_ = 0, cuts_ = 0, reports_ = 0;
  absl::Duration longest_wait_;
};

}  // namespace coordd
