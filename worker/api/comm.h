// Collectives that a thread of the program runs itself, at once and in the order of its calls.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/protocol/types.h"

namespace coordd {

class Work;  // worker/execute/work.h

// Elements to each member, and from each: what one sends is what the other expects.
struct CommSplits {
  std::vector<int64_t> sent, received;
};

// One call, which all members make alike. `count` elements are
//   allreduce, broadcast      the whole buffer
//   allgather, alltoall       a block: one of each member
//   reducescatter             the result
// so that the larger buffer of the last three has size() * count. `input` may be the same memory as
// the output (allgather: its own block of it; reducescatter: `output` is its own block of the
// input), except for alltoall; otherwise they do not overlap. A broadcast has only `output`. An
// alltoall with `splits`, which is another call than one without, has no `count`.
struct CommCall {
  CollectiveKind kind = CollectiveKind::kBarrier;
  DataType dtype = DataType::kUint8;
  ReduceOp op = ReduceOp::kNone;
  int32_t root = 0;  // counts the members
  const void* input = nullptr;
  void* output = nullptr;
  int64_t count = 0;
  std::shared_ptr<const CommSplits> splits = nullptr;

  bool operator==(const CommCall& other) const = default;
};

// A message to another member, or from one. `count` elements of `dtype` at `buffer`.
struct CommMessage {
  static constexpr int32_t kAnySource = -1;

  int32_t peer = 0;  // counts the members; of a receive also kAnySource
  int64_t tag = 0;
  void* buffer = nullptr;
  int64_t count = 0;
  DataType dtype = DataType::kUint8;
};

// The members of a process set in one generation, with an order of their own: no names, nothing is
// negotiated. Calls run one after the other, in the order in which they were made. One thread at a
// time makes them. May outlive its worker; calls then fail. Its end is local, not a collective; it
// ends what was started and has not begun with CANCELLED, and waits for what has begun.
class Comm {
 public:
  virtual ~Comm() = default;

  // This rank's place among the members, and how many they are.
  virtual int32_t rank() const = 0;
  virtual int32_t size() const = 0;

  // Returns when the output is complete and nobody reads the input any more, or with
  //   INVALID_ARGUMENT     a wrong argument; nothing has been done, and the comm can still be used;
  //                        or, where the members share mapped memory, what has come of an alltoall
  //                        with splits is not what was expected; it can be used then, too
  //   DEADLINE_EXCEEDED    who was not there, after the comm's timeout
  //   FAILED_PRECONDITION  an earlier call failed, and why; or another thread makes one; or the
  //                        caller is a forked child
  //   the generation's end, as Worker::status; not where members have left and the call needs
  //                        nothing more of them
  // After any error but the first the comm is over. Buffers that the others have mapped are written
  // to until these have given up, too: until the next generation has formed. Nothing crosses to
  // another thread where the members share mapped memory and nothing that was started is before it.
  virtual absl::Status Run(const CommCall& call) = 0;
  // Run for a caller that looks after other things from time to time. Returns nullptr when the call
  // has ended well; what goes on after `most`, or has ended a moment ago, and is waited for like
  // any work.
  virtual absl::StatusOr<std::shared_ptr<Work>> RunFor(const CommCall& call,
                                                       absl::Duration most) = 0;
  // Run without waiting: what Run would return is the work's status, but for INVALID_ARGUMENT,
  // which comes at once if it can. RESOURCE_EXHAUSTED: a million calls have not ended. Callbacks of
  // these works may make calls of the comm, and wait for them.
  virtual absl::StatusOr<std::shared_ptr<Work>> Start(const CommCall& call) = 0;

  // Messages, beside the order of the calls, from any thread: those from one member with one tag
  // are received in the order in which they were sent. The buffer is in use until the work is done;
  // that of a receive has the sender, counted among the members, as its only received split. A work
  // has no deadline of its own; it outlives the comm, and ends with
  //   INVALID_ARGUMENT  the other member means another count or dtype
  //   the generation's end, as Worker::status
  // Statuses: INVALID_ARGUMENT; UNIMPLEMENTED, between ranks whose sum is too large (lanes.h); as
  // Worker::status.
  virtual absl::StatusOr<std::shared_ptr<Work>> Send(const CommMessage& message) = 0;
  virtual absl::StatusOr<std::shared_ptr<Work>> Receive(const CommMessage& message) = 0;
  // A receive of this comm that its program waits for no longer. When nothing has come for it, its
  // work ends with CANCELLED at once, so that it takes nothing that comes later; otherwise as it
  // would have. A send is not withdrawn: it has been sent.
  virtual void Withdraw(const Work& receive) = 0;
};

}  // namespace coordd
