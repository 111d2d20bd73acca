// What goes into WorkerState and what comes out of it: values only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/protocol/tensor_spec.h"
#include "common/protocol/types.h"
#include "coordd/v1/session.pb.h"
#include "worker/base/shared_spec.h"
#include "worker/interfaces/peer_status.h"
#include "worker/protocol/trace_chunks.h"

namespace coordd {

// One submitted tensor, given by the runtime in the order of submission.
using TensorId = StrongInt<struct TensorIdTag, int64_t>;

// --- in ---
struct SubmittedTensor {
  TensorId id;
  SharedSpec spec;
  absl::Time deadline;
};
struct TensorsSubmitted {  // one tensor, or a whole group
  std::vector<SubmittedTensor> tensors;
  Generation generation = {};  // for which; 0: whichever there is
  bool again = false;          // they were launched, and interrupted; behind EnterGeneration
};
// A call for a new process set, or for the end of one; answered by exactly one ProcessSetAnswer.
struct ProcessSetAsked {
  int64_t token = 0;           // of the answer; not 0
  ProcessSetId remove;         // 0: add one
  std::vector<int32_t> ranks;  // of the new one, strictly increasing
  absl::Time deadline;
  Generation generation = {};  // for which; 0: whichever there is
  std::string name = {};       // of a new one that its members make alone; empty: all ranks do
};
struct CoordinatorSaid {
  v1::CoordinatorMessage message;
  int64_t stream = 0;  // on which it came: the first, or that of an OpenStream
};
struct StreamEnded {
  absl::Status status;
  int64_t stream = 0;
};
struct BatchDone {  // every LaunchBatch is answered by exactly one
  LaneId lane;
  int64_t sequence = 0;
  absl::Status status;
  std::optional<Suspect> suspect;              // whom the data plane blames
  absl::Time ended_at = absl::InfinitePast();  // by the data plane; InfinitePast: now
  bool has_result = false;  // of one that failed: its results are there all the same
};
// Answers WorkerState::question: a thread of the program waits for this tensor.
struct ProgramWaits {
  TensorId id;
};
struct ConnectFailed {  // of the data plane of this generation
  Generation generation;
  absl::Status status;
  std::optional<Suspect> suspect;
  bool was_connected = false;  // it failed later, in a comm
};
struct MembersMayChange {  // the program has come to a point at which others may join it
  Generation generation;   // in which it is
};
struct DrainAsked {  // the program's process has to end: others are to go on without it
  absl::Time until;
  std::string reason;  // one phrase
};
struct LeaveRequested {  // finish what is planned, then say goodbye
  // That waits for another LeaveRequested, until then.
  absl::Time held_until = absl::InfinitePast();
  // The program ends by this error: coordd is told, and nothing is finished.
  std::string failure = {};
};
struct StopForced {};  // the time for that is over
using WorkerEvent = std::variant<TensorsSubmitted, ProcessSetAsked, CoordinatorSaid, StreamEnded,
                                 BatchDone, ProgramWaits, ConnectFailed, MembersMayChange,
                                 DrainAsked, LeaveRequested, StopForced>;

// --- out, to be carried out in this order ---
struct SendMessage {
  v1::WorkerMessage message;
};
// Precedes every batch of the set.
struct DefineProcessSet {
  ProcessSetId process_set;
  std::vector<int32_t> ranks;
  bool member = false;    // this rank is one of them
  bool for_pair = false;  // coordd made it for a send and its receive: nobody may submit to it
};
struct EndProcessSet {  // follows the last batch of the set
  ProcessSetId process_set;
  bool member = false;
};
struct EndLane {  // follows the last batch of a schedule's lane
  LaneId lane;
};
struct ProcessSetAnswer {
  int64_t token = 0;
  absl::Status status;
  ProcessSetId process_set;
};
struct LaunchBatch {
  LaneId lane;
  int64_t sequence = 0;
  ProcessSetId process_set;
  using Tensors = absl::InlinedVector<TensorId, 2>;
  using Durations = absl::InlinedVector<absl::Duration, 1>;
  Tensors tensors;        // in the order of the plan; 0: the next of `absent`
  Durations negotiation;  // of each that is not absent: reported to planned
  // What this rank, which has joined, has not submitted: it contributes the operator's identity or
  // no rows.
  std::vector<TensorSpec> absent;
  int32_t last_joined_rank = -1;  // of the batch that ends a join
  absl::Time ready_at;            // planned, or all its tensors are there
  bool begins_cycle = false;      // of a schedule
  bool staged = false;            // tensors on devices travel through host memory
};
struct FailTensor {  // completes its Work; never for a tensor that is executing
  TensorId id;
  absl::Status status;
};
struct AbortExecution {};  // what is launched shall end; BatchDone follows for each
struct GenerationEnded {   // the error of every further call, until the program knows of the next
  absl::Status status;
  bool for_good = true;  // no generation follows
};
// Programs need not know: what is pending goes on in the next one. EnterGeneration or
// GenerationEnded follows.
struct GenerationInterrupted {};
struct NewcomersWait {  // so many workers wait to become members
  int32_t count = 0;
};
struct DrainNoticed {                         // this rank is to leave at the next commit
  absl::Time until = absl::InfiniteFuture();  // or is evicted; infinite: it may stay
};
struct EnterGeneration {  // precedes everything of the next generation
  v1::CoordinatorMessage membership;
  std::vector<DefineProcessSet> process_sets;  // those of the one before that are left
};
// For a trace of all ranks, that coordd collects.
struct TraceBegin {
  int64_t bytes_max = 0;
};
struct TraceEnd {
  bool send = false;  // what was recorded, as TraceChunks in messages like this one
  v1::WorkerMessage chunk;
  TraceClock clock;
  int64_t bytes_max = 0;
  // Only these repetitions of a schedule, when it has any (worker/protocol/trace_chunks.h).
  LaneId lane;
  int64_t batches_per_cycle = 0;
  int64_t from_cycle = 0, until_cycle = 0;
};
// The connection is gone: a new one, to another address of coordd. The messages that follow go
// there.
struct OpenStream {
  int64_t stream = 0;  // 1, 2, 3, …
};
// coordd does not come back, so far: told once, for people, of each time that it is away.
struct CoordinatorAway {
  absl::Duration since;
  absl::Status why;         // of the last attempt, in gRPC's words
  absl::Duration patience;  // in all, from when it went
};
struct CloseStream {};   // after what was sent
struct WorkFinished {};  // all is, that was to be before a goodbye that is held
struct Stopped {};       // nothing is pending, nothing will follow
using WorkerEffect =
    std::variant<SendMessage, DefineProcessSet, EndProcessSet, EndLane, ProcessSetAnswer,
                 LaunchBatch, FailTensor, AbortExecution, GenerationEnded, GenerationInterrupted,
                 NewcomersWait, DrainNoticed, EnterGeneration, TraceBegin, TraceEnd, OpenStream,
                 CoordinatorAway, CloseStream, WorkFinished, Stopped>;

}  // namespace coordd
