// What executes one batch on a lane, in whatever way: a schedule of messages, memory that a node's
// ranks have mapped, slices between nodes. Whoever adds an algorithm adds one of these.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace coordd {

// One thread uses it, that of the transport's owner. It is resumable: no call waits. It must not be
// destroyed before finished(), unless the transport has dropped its operations.
class LaneRun {
 public:
  virtual ~LaneRun() = default;

  // Does what can be done without waiting; returns whether anything was done.
  virtual bool Advance() = 0;
  // Fails the run: nothing further is begun, and it is finished once nothing of it is under way.
  // The first error counts.
  virtual void Fail(absl::Status status) = 0;
  // The result is there, or the run has failed and uses its buffers no more.
  virtual bool finished() const = 0;
  virtual const absl::Status& status() const = 0;

  // Whether nothing goes on before the next step of this member of the group, in a run on memory
  // that the ranks of a node share.
  virtual bool WaitsFor(int32_t /*member*/) const { return false; }
  // Who rings the bell of the group's node: the members before each of their steps, or with kForAll
  // whoever this run can wait for at all.
  enum class Rings { kNobody, kMembers, kForAll };
  virtual Rings rings() const { return Rings::kNobody; }
};

}  // namespace coordd
