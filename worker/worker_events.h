// What goes into WorkerState and what comes out of it: values only.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/tensor_spec.h"
#include "common/types.h"
#include "coordd/v1/session.pb.h"

namespace coordd {

// One submitted tensor, given by the runtime in the order of submission.
using TensorId = StrongInt<struct TensorIdTag, int64_t>;

// --- in ---
struct SubmittedTensor {
  TensorId id;
  TensorSpec spec;
  absl::Time deadline;
};
struct TensorsSubmitted {  // one tensor, or a whole group
  std::vector<SubmittedTensor> tensors;
};
struct CoordinatorSaid {
  v1::CoordinatorMessage message;
};
struct StreamEnded {
  absl::Status status;
};
struct BatchDone {  // every LaunchBatch is answered by exactly one
  LaneId lane;
  int64_t sequence = 0;
  absl::Status status;
  std::optional<Rank> suspect;  // whom the data plane blames
};
struct LeaveRequested {};  // finish what is planned, then say goodbye
struct StopForced {};      // the time for that is over
using WorkerEvent = std::variant<TensorsSubmitted, CoordinatorSaid, StreamEnded, BatchDone,
                                 LeaveRequested, StopForced>;

// --- out, to be carried out in this order ---
struct SendMessage {
  v1::WorkerMessage message;
};
struct LaunchBatch {
  LaneId lane;
  int64_t sequence = 0;
  std::vector<TensorId> tensors;            // in the order of the plan
  std::vector<absl::Duration> negotiation;  // of each: reported to planned
};
struct FailTensor {  // completes its Work; never for a tensor that is executing
  TensorId id;
  absl::Status status;
};
struct AbortExecution {};  // what is launched shall end; BatchDone follows for each
struct GenerationEnded {   // the error of every further call
  absl::Status status;
};
struct CloseStream {};  // after what was sent
struct Stopped {};      // nothing is pending, nothing will follow
using WorkerEffect = std::variant<SendMessage, LaunchBatch, FailTensor, AbortExecution,
                                  GenerationEnded, CloseStream, Stopped>;

}  // namespace coordd
