// Executes a small collective among ranks of a node: the inputs travel in the posts, so that one
// step is enough.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "worker/interfaces/collective_args.h"
#include "worker/interfaces/collective_backend.h"
#include "worker/node/node_lane.h"

namespace coordd {

// One thread uses it, that of the lane's owner. It is resumable: no call waits, none fails; where a
// member calls something else, it goes no further. Each call of it that a program waits for is a
// few cache lines; all of this is to be little beside that.
class NodeInlineRun {
 public:
  // Whether it can: known to all members alike. `inline_bytes_max`: NodeRunOptions.
  static bool Fits(const CollectiveArgs& args, int32_t members, int64_t inline_bytes_max);

  // `args` are valid; args.root counts the members. They and the lane outlive the run.
  // REQUIRES: Fits.
  NodeInlineRun(const CollectiveArgs& args, NodeLane& lane);

  // Does what can be done without waiting; returns whether anything was done.
  bool Advance();
  bool finished() const { return phase_ >= Phase::kDifferent; }
  // That a member calls another collective; OK: none does, as far as is known.
  absl::Status status() const {
    return phase_ == Phase::kDifferent ? Difference() : absl::OkStatus();
  }
  // Whether nothing goes on before the next step of this member.
  bool WaitsFor(int32_t member) const;

 private:
  enum class Phase : uint8_t { kPosting, kPosted, kDifferent, kFinished };

  void Post();
  bool HasInputs() const;
  bool IsHeard(int32_t member) const;
  int32_t FirstDifferent() const;
  absl::Status Difference() const;
  void Finish();
  const std::byte* InputOf(int32_t member, int64_t size_bytes) const;

  // Constant after construction.
  const CollectiveArgs& args_;
  NodeLane& lane_;
  const uint64_t call_;
  const int64_t step_;
  const bool is_root_;
  const double scale_;

  // Touched by the owner's thread.
  Phase phase_ = Phase::kPosting;
  int32_t different_ = -1;  // the first member that calls something else
};

}  // namespace coordd
