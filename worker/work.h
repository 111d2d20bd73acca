// The future of one submitted tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "common/tensor_spec.h"
#include "common/types.h"
#include "worker/fork_guard.h"

namespace coordd {

// What a completed Work holds besides its status.
struct WorkResult {
  Generation generation;  // to which the result belongs
  int32_t size = 0;       // members of it: what an average was divided by
  // Where the caller gave no output buffer (allgather, alltoall, reducescatter): the result,
  // 64-byte aligned.
  std::shared_ptr<std::byte[]> owned_output;
  int64_t output_bytes = 0;
  std::vector<int64_t> output_shape;
  std::vector<int64_t> received_splits;  // alltoall: rows received from each rank
};

// Thread-safe. Completes exactly once, before its deadline: with a result or with an error whose
// message names tensor, generation and, where one is to blame, rank and host. Codes:
// INVALID_ARGUMENT ranks disagree about the tensor; ABORTED the generation ended (a member was lost
// or left); DEADLINE_EXCEEDED who was missing; CANCELLED withdrawn or shut down; UNAVAILABLE coordd
// is gone; INTERNAL.
class Work {
 public:
  Work(TensorSpec spec, Clock& clock) : spec_(std::move(spec)), clock_(clock) {}

  const TensorSpec& spec() const { return spec_; }

  // Waits until it is complete or `deadline` passes. Returns its status, or DEADLINE_EXCEEDED when
  // it is still running (it then goes on, and its buffers stay in use), or FAILED_PRECONDITION in
  // a forked child.
  absl::Status Wait(absl::Time deadline);
  bool done() const;
  // In a forked child nothing completes any more; see ForkGuard.
  bool in_forked_child() const { return fork_guard_.InChild(); }

  // REQUIRES: done() and an OK status.
  const WorkResult& result() const;

  // Calls `f(status)` when complete: on a thread of the runtime, or at once on this thread when it
  // already is. `f` must not block and must not wait for another Work.
  void OnComplete(std::function<void(const absl::Status&)> f);

  // Whether somebody else's code runs when it completes.
  bool has_callbacks() const;

  // The runtime's side; once.
  void Complete(absl::Status status, WorkResult result);

 private:
  // Constant after construction.
  const TensorSpec spec_;
  Clock& clock_;
  const ForkGuard fork_guard_;

  // Guarded by mu_.
  mutable Mutex mu_;
  CondVar completed_;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  WorkResult result_ ABSL_GUARDED_BY(mu_);
  std::vector<std::function<void(const absl::Status&)>> callbacks_ ABSL_GUARDED_BY(mu_);
};

}  // namespace coordd
