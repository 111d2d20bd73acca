// What coordd's plans and failures mean at this rank.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/protocol/tensor_spec.h"
#include "coordd/v1/session.pb.h"
#include "worker/protocol/launched_batches.h"
#include "worker/protocol/pending_tensors.h"
#include "worker/protocol/scheduled_work.h"
#include "worker/protocol/worker_generation.h"

namespace coordd {

// The pending tensor that a plan or a failure for this set means; end(): none.
PendingTensors::iterator FindMeant(PendingTensors& pending, const ProcessSetState& sets,
                                   ProcessSetId process_set, absl::string_view name);

// PURE; lives for one message.
//
// Invariant: a batch is launched just when all of it is what coordd says.
class PlanReader {
 public:
  // `size`: of the generation.
  PlanReader(WorkerGeneration& generation, int32_t size, const ScheduledWork::Context& context)
      : generation_(generation), size_(size), context_(context) {}

  // INTERNAL: what is wrong with the plan. Tensors of the batch in question then wait for the
  // verdict, with which they fail.
  absl::Status Read(const v1::CollectivePlan& plan);

 private:
  // INTERNAL: `executing` then holds the tensors that are not pending any more.
  absl::Status PlanBatch(const v1::FusedBatch& batch, LaunchedBatch& executing);
  // Moves one of the batch's tensors from pending to executing.
  void PlanTensor(PendingTensors::iterator found, LaunchedBatch& executing, LaunchBatch& launch);
  // The tensors of a batch. INTERNAL: it has none, or by slots that coordd has not given.
  absl::StatusOr<std::vector<absl::string_view>> NamesOf(const v1::FusedBatch& batch);
  // What a batch says about a tensor that this rank, which has joined, has not submitted. INTERNAL:
  // it has not joined, or nothing is said.
  absl::StatusOr<TensorSpec> AbsentSpec(const v1::FusedBatch& batch, int index,
                                        absl::string_view name) const;
  absl::Status LearnSlots(const v1::CollectivePlan& plan);

  WorkerGeneration& generation_;
  const int32_t size_;
  const ScheduledWork::Context& context_;
};

}  // namespace coordd
