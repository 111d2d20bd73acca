// Collectives that a thread of the program runs itself, at once and in the order of its calls.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/protocol/types.h"

namespace coordd {

// One call, which all members make alike. `count` elements are
//   allreduce, broadcast      the whole buffer
//   allgather, alltoall       a block: one of each member
//   reducescatter             the result
// so that the larger buffer of the last three has size() * count. `input` may be the same memory as
// the output (allgather: its own block of it; reducescatter: `output` is its own block of the
// input), except for alltoall; otherwise they do not overlap. A broadcast has only `output`.
struct CommCall {
  CollectiveKind kind = CollectiveKind::kBarrier;
  DataType dtype = DataType::kUint8;
  ReduceOp op = ReduceOp::kNone;
  int32_t root = 0;  // counts the members
  const void* input = nullptr;
  void* output = nullptr;
  int64_t count = 0;

  bool operator==(const CommCall& other) const = default;
};

// The members of a process set in one generation, with an order of their own: no names, nothing is
// negotiated, nothing crosses to another thread where they share mapped memory. One thread at a
// time. May outlive its worker; calls then fail. Its end is local, not a collective.
class Comm {
 public:
  virtual ~Comm() = default;

  // This rank's place among the members, and how many they are.
  virtual int32_t rank() const = 0;
  virtual int32_t size() const = 0;

  // Returns when the output is complete and nobody reads the input any more, or with
  //   INVALID_ARGUMENT     a wrong argument; nothing has been done, and the comm can still be used
  //   DEADLINE_EXCEEDED    who was not there, after the comm's timeout
  //   FAILED_PRECONDITION  an earlier call failed, and why; or the caller is a forked child
  //   the generation's end, as Worker::status
  // After any error but the first the comm is over. Buffers that the others have mapped are written
  // to until these have given up, too: until the next generation has formed.
  virtual absl::Status Run(const CommCall& call) = 0;
};

}  // namespace coordd
