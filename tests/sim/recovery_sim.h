// coordd's state and the states of n workers that go on when some of them die, and when coordd
// dies, which is started again on what it had stored: whatever the order of events, each survivor
// gets each result once, all get the same, and it is exact over the members of its generation; and
// each process set has exactly those of its workers that are left. Where workers come while the job
// runs, the programs do what coordd.elastic does, and whoever contributes to a step has the state
// of all others. Beside that they write into the job's store (store_sim.h).
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/random.h"
#include "tests/sim/coordd_model.h"
#include "tests/sim/store_sim.h"
#include "worker/protocol/worker_state.h"

namespace coordd {

// Mistakes that the simulator must notice.
enum class RecoveryBug {
  kNone,
  kSkipsRepair,           // a survivor submits anew what others have given to their programs
  kBufferReusedTooEarly,  // a rank completes a batch before all hold its result
  kPlanIsNotStored,       // coordd has forgotten what was to be repaired when it is started again
  kChangeNotAskedAgain,   // a rank that is back does not repeat what it has asked for
  kDrainNotStored,        // coordd has forgotten who is to leave when it is started again
  kSetsNotStored,         // likewise, the process sets that the generation has begun with
  kNewcomersApart,        // each rank lets newcomers in at the commit at which it has heard of them
  kSyncSkipped,           // one rank does not take part when the state is given to newcomers
  kNewcomerGives,         // the state that all take is a newcomer's
  kChangeOfAnyGeneration,  // a rank asks for the end of another generation than has agreed to it
  kStaleIsTaken,           // a worker takes what comes on a stream that it has given up
  kAnsweredBeforeStored,   // coordd is told that its disk has written before it has
  kBitKeptOverGeneration,  // a worker reports by a slot of the generation before
  kVersionsNotReported,    // a worker does not say when it has written into the store
  kLateAnswerCounts        // a worker relies on the store's answer behind its next report
};

struct RecoverySimOptions {
  int32_t workers = 4;
  int32_t kills = 1;
  int32_t crashes = 0;  // of coordd
  int32_t changes = 0;  // of members, that rank 0 asks for
  int32_t dozes = 0;    // of coordd, for a lease, while streams end
  int32_t drains = 0;   // of workers, that an operator asks for or their own process
  int32_t evictions = 0;
  int32_t partitions = 0;  // of one worker and coordd, in one direction or both
  int32_t cuts = 0;        // of links between two workers, in one direction or both
  int32_t newcomers = 0;   // workers that come while the job runs
  int32_t pauses = 0;      // of workers that get no turn, and go on
  int32_t relays = 0;      // that end, and with them the streams of several workers
  bool stale = false;      // what was under way on a stream arrives after the next was opened
  int32_t steps = 12;
  int32_t tensors = 3;  // of a step
  RecoveryBug bug = RecoveryBug::kNone;
};

class RecoverySim {
 public:
  using Log = std::function<void(absl::string_view line)>;
  RecoverySim(uint64_t seed, const RecoverySimOptions& options, Log log = nullptr);

  // Until the programs of all who are left have ended. INTERNAL: what went wrong.
  absl::Status Run();

  int64_t generations() const { return static_cast<int64_t>(members_.size()); }
  int64_t held() const { return held_; }    // batches whose interrupted results counted
  int64_t again() const { return again_; }  // batches that were submitted anew
  int64_t scheduled_batches() const { return scheduled_batches_; }
  int64_t changes() const { return options_.changes - changes_left_; }
  int64_t drained() const { return drained_; }        // who have left, as they were asked to
  int64_t failed() const { return failed_; }          // of those killed, who said so before
  int64_t evicted() const { return evicted_; }        // at once, or when their time was over
  int64_t found_sets() const { return found_sets_; }  // by workers that have entered a generation
  int64_t batches_in_found_sets() const { return batches_in_found_sets_; }
  // Made by their members alone, and ended by them; heard of by who had asked an earlier coordd.
  int64_t named_sets() const { return static_cast<int64_t>(named_sets_.size()); }
  int64_t ended_named_sets() const { return ended_named_sets_; }
  int64_t named_after_resume() const { return named_after_resume_; }
  int64_t cuts() const { return options_.cuts - cuts_left_; }
  int64_t newcomers() const { return options_.newcomers - newcomers_left_; }
  int64_t pauses() const { return options_.pauses - pauses_left_; }
  int64_t relays() const { return options_.relays - relays_left_; }
  int64_t stale() const { return stale_; }    // messages that came on streams given up
  int64_t given() const { return given_; }    // states, to workers that had another one
  int64_t parted() const { return parted_; }  // evicted since they did not reach another
  int64_t crashes() const { return options_.crashes - crashes_left_; }
  int64_t partitions() const { return options_.partitions - partitions_left_; }
  int64_t suspended() const { return suspended_; }  // generations that a living coordd took up anew
  int64_t resumed() const { return resumed_; }      // ranks that went on in their generation
  int64_t over() const { return over_; }            // that came back after the end of theirs
  // Tensors that were reported by slot: in all; in a generation that follows another one; and to
  // another coordd than the one to which the rank had come in it.
  int64_t by_slot() const { return by_slot_; }
  int64_t by_slot_after_another() const { return by_slot_after_another_; }
  int64_t by_slot_after_resume() const { return by_slot_after_resume_; }
  const StoreSim& store() const { return store_; }
  int64_t told_again() const { return told_again_; }  // of a generation formed before a crash

 private:
  using BatchKey = std::pair<LaneId, int64_t>;
  struct Tensor {
    std::string name;
    int64_t instance = 0;
    int32_t set = 0;
    std::string value = "";  // what this worker contributes
  };
  struct Part {  // of one worker in one batch
    LaunchBatch::Tensors ids;
    std::vector<std::string> values;  // of these
    bool has_result = false;
  };
  // What the program has come to, and would write into a checkpoint.
  struct Trained {
    int32_t step = 0;
    int64_t commits = 0;
    uint64_t digest = 0;  // of all results that it has applied
  };
  // What the program does next, where workers come while the job runs: as coordd.elastic does it.
  enum class Phase { kTrain, kCommit, kDecide, kChange, kOwners, kState, kTake, kDone };
  struct WorkerModel {
    bool alive = true;
    bool is_to_leave = false;   // it has been told
    bool leaves = false;        // its program has come to that
    bool fails = false;         // or it ends by an error
    bool ticked = false;        // since its last turn
    bool acknowledged = false;  // an operator relies on its going
    bool may_be_evicted = false;
    absl::Time cut_until = absl::InfinitePast();  // it may be missed that long
    absl::Time pauses_until = absl::InfinitePast();
    // It has a result that others have of this later generation, as one may that dies: it must not
    // come so far. Empty: nothing.
    std::string apart;
    int64_t apart_from = 0;
    std::unique_ptr<WorkerState> state;
    int64_t generation = 0;
    int64_t wants_to_end = 0;  // the generation that it has asked to change; 0: none
    bool aborted = false;
    Phase phase = Phase::kTrain;
    Trained trained;          // as far as results have come
    std::string contributes;  // to this step: its state before it
    absl::Time computes_until = absl::InfinitePast();
    bool shared = false;    // its state is that of all members
    int32_t newcomers = 0;  // as it has heard
    bool wants_change = false;
    int64_t agreed_in = 0;  // the last commit's generation, and whether its result was
    bool changes = false, goes_on = false;
    int32_t giver = 0;  // of the state; and the state
    std::optional<std::string> given;
    std::vector<int32_t> to_submit;  // tensors of this step, in an order of its own
    std::map<TensorId, Tensor> open;
    // Of its generation: what it has launched and not ended, by lane in the order of its launches.
    std::map<LaneId, std::deque<int64_t>> running;
    std::map<BatchKey, Part> interrupted;
    // Process sets as it knows them, with the ranks in each of the generation `sets_of`; and those
    // of whose end it has heard.
    std::map<int32_t, std::vector<int32_t>> sets;
    int64_t sets_of = 0;
    std::set<int32_t> ended_sets;
    std::vector<ProcessSetAsked> to_ask;  // of its generation, one after the other
    bool asks = false;
    std::vector<std::pair<int32_t, std::string>> to_submit_in_sets;
    // Slots of the set of all, as it has heard of them: in this generation, and in the one before.
    std::map<std::string, int64_t> slots, old_slots;
    int64_t last_slot = 0;
    bool has_resumed = false;                      // its generation
    std::optional<v1::CoordinatorMessage> joined;  // its first Membership, until its sets are there
    v1::ProcessSets joined_sets;
    int64_t last_id = 0;
  };
  struct Batch {
    std::vector<std::string> tensors;    // name and instance, as the first who launched it has them
    std::map<int32_t, int32_t> members;  // the rank of each worker
    std::map<int32_t, Part> parts;       // by worker
  };
  using GlobalKey = std::pair<int64_t, BatchKey>;  // with the generation

  int32_t count() const { return static_cast<int32_t>(workers_.size()); }
  // It has joined, and is in no generation as yet.
  static bool IsOutside(const WorkerModel& worker) {
    return worker.alive && worker.state == nullptr;
  }
  bool IsPaused(const WorkerModel& worker) const { return coordd_.now() < worker.pauses_until; }
  bool GetsTurns(const WorkerModel& worker) const { return worker.alive && !IsPaused(worker); }
  absl::Status Step();
  absl::Status TakeStale(bool& happened);
  absl::Status PassTime();
  bool Finished() const;
  bool CanRun(const WorkerModel& worker) const;
  absl::Status RunProgram(int32_t w);
  absl::Status Leave(int32_t w);
  absl::Status EndOfStore();
  absl::Status ToCoordd(int32_t w);
  absl::Status ToWorker(int32_t w);
  // Something that may happen in the data plane of this worker; whether anything did.
  absl::Status MoveData(int32_t w, bool& moved);
  absl::Status EndPart(int32_t w, const GlobalKey& key, absl::Status status,
                       std::optional<Suspect> suspect = std::nullopt);
  // Whether what `from` sends on the data plane does not arrive at `to`.
  bool IsCut(int32_t from, int32_t to) const { return cut_.contains({from, to}); }
  absl::Status Turn(int32_t w, WorkerEvent event);
  absl::Status Tick(int32_t w);
  absl::Status CheckAlive(int32_t w);
  absl::Status Take(int32_t w, std::vector<WorkerEffect> effects);
  absl::Status OnLaunch(int32_t w, const LaunchBatch& launch);
  absl::Status OnEnter(int32_t w, const EnterGeneration& enter);
  absl::Status OnResults(int32_t w, const GlobalKey& key, const Part& part);
  absl::Status OnResult(int32_t w, const Tensor& tensor, int64_t generation);
  // What coordd says, and does otherwise.
  bool OnSaid(int32_t w, const v1::CoordinatorMessage& message, bool current);
  absl::Status OnDid(const Outgoing& out);

  // recovery_sim_sets.cc
  absl::Status Begin(int32_t w, const v1::CoordinatorMessage& message);
  absl::Status OnFound(int32_t w, int32_t size, const std::vector<DefineProcessSet>& sets);
  absl::Status CheckFound(int32_t w, const std::map<int32_t, std::set<int32_t>>& found) const;
  std::set<int32_t> WorkersOf(int64_t generation, const std::vector<int32_t>& ranks) const;
  void OnDefined(int32_t w, const DefineProcessSet& set);
  void OnEnded(int32_t w, const EndProcessSet& set);
  const std::vector<int32_t>& RanksOf(const WorkerModel& worker, int32_t set) const;
  absl::Status OnFailed(int32_t w, const FailTensor& fail);
  absl::Status OnAnswered(int32_t w, const ProcessSetAnswer& answer);
  void NoteChange(const v1::CoordinatorMessage& message);
  static bool HasSetWork(const WorkerModel& worker) {
    return (!worker.to_ask.empty() && !worker.asks) || !worker.to_submit_in_sets.empty();
  }
  absl::Status DoSetWork(int32_t w);
  static TensorSpec SpecOf(const Tensor& tensor);

  // recovery_sim_slots.cc
  void HearOfSlots(int32_t w, const v1::CoordinatorMessage& message);
  void KeepBits(const WorkerModel& worker, v1::TensorsReady& ready) const;
  void CountReports(const WorkerModel& worker, const v1::TensorsReady& ready);

  // recovery_sim_newcomers.cc
  bool are_elastic() const { return options_.newcomers > 0; }
  bool CanGoOn(const WorkerModel& worker) const;  // to its next phase; REQUIRES: nothing is open
  // Not while the state is given to others, as no program does.
  static bool MayLeave(const WorkerModel& worker) {
    return worker.is_to_leave && (worker.phase == Phase::kTrain || worker.phase == Phase::kCommit ||
                                  worker.phase == Phase::kDone);
  }
  absl::Status GoOn(int32_t w);
  absl::Status Submit(int32_t w, Tensor tensor);
  absl::Status SubmitTensorOfStep(int32_t w);
  absl::Status Commit(int32_t w);
  absl::Status Decide(int32_t w);
  absl::Status TakeState(int32_t w);
  // What the members of a batch have contributed to its tensor `at`, by rank.
  static std::map<int32_t, std::pair<int32_t, std::string>> Contributions(const Batch& batch,
                                                                          size_t at);
  absl::Status OnValue(int32_t w, const Tensor& tensor, int64_t generation, const Batch& batch,
                       size_t at);
  void Come();

  // recovery_sim_faults.cc
  CoorddModel::Hooks CoorddHooks(Log log);
  absl::Status Fault(bool& happened);
  absl::Status Kill();
  absl::Status AskForChange();
  absl::Status Dismiss(bool evict);
  void Cut();
  void Sleep();
  void Partition();
  void Pause();
  void LoseRelay();
  void MendSomething();
  absl::Time NextMend() const;
  StoreSim::Who StoreUsers() const;
  // It was evicted, or may have been while it was cut off: then it ends, and nobody misses it.
  bool MayBeGone(int32_t w) const;
  void End(int32_t w);
  absl::Status OnClosed(const CloseSession& close);
  v1::Join JoinFor(int32_t w) const;
  absl::Status EndStream(int32_t w);

  const RecoverySimOptions options_;
  Random random_;
  CoorddModel coordd_;
  StoreSim store_;
  std::vector<WorkerModel> workers_;
  int32_t kills_left_;
  int32_t crashes_left_;
  int32_t changes_left_;
  int32_t dozes_left_;
  absl::Time suspended_at_;
  int32_t drains_left_, partitions_left_, evictions_left_, cuts_left_, newcomers_left_,
      pauses_left_, relays_left_;
  std::set<std::pair<int32_t, int32_t>> cut_;  // from, to
  int64_t last_call_ = 0;
  std::map<CallId, int32_t> drain_calls_;                  // whom an operator has asked to leave
  std::map<int64_t, std::map<int32_t, int32_t>> members_;  // by generation: rank of each worker
  // By generation: what the first worker that has entered it has found.
  std::map<int64_t, std::map<int32_t, std::vector<int32_t>>> found_;
  std::set<int32_t> ended_sets_;  // of whose end some worker has been told
  // By generation, with which they end: sets that their members have made alone.
  std::map<std::pair<int64_t, int32_t>, std::vector<int32_t>> named_sets_;
  int64_t ended_named_sets_ = 0, named_after_resume_ = 0;
  int64_t found_sets_ = 0, batches_in_found_sets_ = 0;
  std::map<GlobalKey, Batch> batches_;
  // By name and instance: of which generation each worker got it.
  std::map<std::string, std::map<int32_t, int64_t>> results_;
  int64_t held_ = 0, again_ = 0, scheduled_batches_ = 0;
  int64_t drained_ = 0, failed_ = 0, evicted_ = 0, parted_ = 0, given_ = 0, stale_ = 0;
  int64_t by_slot_ = 0, by_slot_after_another_ = 0, by_slot_after_resume_ = 0;
  int64_t resumed_ = 0, over_ = 0, told_again_ = 0, suspended_ = 0;
};

}  // namespace coordd
