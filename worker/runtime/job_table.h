// What lies behind the numbers of WorkerState: tensors with their buffers, batches, process sets,
// and calls that wait for an answer.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "worker/base/variant_types.h"
#include "worker/execute/batch_job.h"
#include "worker/execute/process_set_table.h"
#include "worker/execute/tensor_job.h"
#include "worker/protocol/worker_events.h"
#include "worker/runtime/process_set_reply.h"

namespace coordd {

// A caller's question about process sets; its token is the table's to give.
struct ProcessSetCall {
  ProcessSetAsked asked;
  std::shared_ptr<ProcessSetReply> reply;
};

// Effects of WorkerState with the objects that their numbers mean.
struct DefineGroup {
  ProcessSetId process_set;
  RankList ranks;
  bool member = false;
  bool for_pair = false;
};
struct AnswerCall {
  std::shared_ptr<ProcessSetReply> reply;
  absl::StatusOr<ProcessSetId> answer;
};
struct LaunchJob {
  std::unique_ptr<BatchJob> batch;
  LaunchBatch::Durations negotiation;
};
struct FailWork {
  std::shared_ptr<Work> work;
  absl::Status status;
};
// EnterGeneration, with what was interrupted and whose results count after all.
struct EnterNext {
  v1::CoordinatorMessage membership;
  std::vector<std::unique_ptr<BatchJob>> held;
  std::vector<DefineGroup> process_sets;
};

// What is to be done for an effect: the effect itself, but for those.
template <typename Effect>
struct ActionOf {
  using Type = Effect;
};
template <>
struct ActionOf<DefineProcessSet> {
  using Type = DefineGroup;
};
template <>
struct ActionOf<ProcessSetAnswer> {
  using Type = AnswerCall;
};
template <>
struct ActionOf<LaunchBatch> {
  using Type = LaunchJob;
};
template <>
struct ActionOf<FailTensor> {
  using Type = FailWork;
};
template <>
struct ActionOf<EnterGeneration> {
  using Type = EnterNext;
};
using ControlAction = VariantReplaced<WorkerEffect, ActionOf>;

// Not thread-safe: it goes with WorkerState, under the same lock. Never blocks.
class JobTable {
 public:
  // `world`: of process set 0; `clock` outlives it.
  JobTable(BatchContext world, Rank rank, Clock& clock)
      : clock_(clock), world_(std::move(world)), rank_(rank) {}
  // The sets that a generation begins with.
  std::vector<DefineGroup> Begin(std::vector<DefineProcessSet> process_sets);

  // Numbers what comes in, for WorkerState to speak of.
  TensorsSubmitted Add(std::vector<TensorJob> jobs);
  ProcessSetAsked Add(ProcessSetCall call);
  // Forgets a batch, and its Works if it went well: whoever ended it completes them.
  // REQUIRES: it was launched.
  void Ended(const BatchDone& done);
  // One that failed, which may be executed again. REQUIRES: it was launched.
  void Interrupted(std::unique_ptr<BatchJob> batch);
  // What was interrupted and is to be submitted anew, once; empty: nothing.
  TensorsSubmitted TakeAgain() { return std::exchange(again_, {}); }
  bool has_again() const { return !again_.tensors.empty(); }

  ControlAction Resolve(WorkerEffect effect);
  // The first of these for which a thread waits.
  std::optional<TensorId> Awaited(const std::vector<TensorId>& ids) const;

  // Everything that has no end yet, failed with `status`; forgets it.
  std::vector<ControlAction> FailAll(const absl::Status& status);

 private:
  DefineGroup On(DefineProcessSet& effect);
  ControlAction On(EndProcessSet& effect);
  ControlAction On(ProcessSetAnswer& effect);
  ControlAction On(LaunchBatch& effect);
  ControlAction On(FailTensor& effect);
  ControlAction On(EnterGeneration& effect);
  // Any other stays as it is.
  template <typename Effect>
  static ControlAction On(Effect& effect) {
    static_assert(std::is_same_v<typename ActionOf<Effect>::Type, Effect>);
    return std::move(effect);
  }

  // Constant after construction.
  Clock& clock_;

  // The ranks of the generation.
  BatchContext world_;
  Rank rank_;

  int64_t last_id_ = 0;
  struct OpenTensor {
    std::shared_ptr<Work> work;
    // Of the submission, until it is launched; nullptr: it is. Moving jobs is what a large group
    // would pay for.
    std::shared_ptr<std::vector<TensorJob>> jobs;
    size_t index = 0;  // in it
  };
  using OpenMap = absl::flat_hash_map<TensorId, OpenTensor>;
  OpenMap open_;
  using BatchKey = std::pair<LaneId, int64_t>;
  struct InterruptedBatch {
    std::unique_ptr<BatchJob> batch;
    LaunchBatch::Tensors tensors;
  };
  void SubmitAgain(InterruptedBatch interrupted);
  // REQUIRES: it waits.
  TensorJob Launch(TensorId id);
  std::map<BatchKey, LaunchBatch::Tensors> batches_;
  std::map<BatchKey, InterruptedBatch> interrupted_;  // until the next generation
  TensorsSubmitted again_;
  std::map<ProcessSetId, BatchContext> process_sets_;  // of which this rank is a member
  int64_t last_token_ = 0;
  std::map<int64_t, std::shared_ptr<ProcessSetReply>> replies_;
};

}  // namespace coordd
