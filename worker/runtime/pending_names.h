// The names of the tensors that have been submitted here and have not ended.
#pragma once

#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/mutex.h"
#include "common/protocol/tensor_spec.h"
#include "worker/execute/tensor_job.h"

namespace coordd {

// Tensors that one worker may have open: what coordd keeps for a whole job is four times that.
inline constexpr size_t kMaxPendingTensors = size_t{1} << 18;

// Thread-safe: callers insert, the completion thread erases just before a Work completes, so that
// whoever waited for it may submit the name again; what NCCL carries, when it is on the device
// (Work::enqueued). Names are those of the Works, which live longer.
class PendingNames {
 public:
  // All of them or none. ALREADY_EXISTS: a tensor of this name is pending in its process set.
  // RESOURCE_EXHAUSTED: too many are. FAILED_PRECONDITION: this rank has joined.
  absl::Status Insert(absl::Span<const TensorJob> jobs) {
    MutexLock lock(&mu_);
    names_.reserve(names_.size() + jobs.size());
    for (size_t i = 0; i < jobs.size(); ++i) {
      const absl::Status refused = InsertLocked(jobs[i].spec());
      if (refused.ok()) continue;
      for (const TensorJob& inserted : jobs.subspan(0, i)) EraseLocked(inserted.spec());
      return refused;
    }
    return absl::OkStatus();
  }

  void Erase(absl::Span<const TensorJob> jobs) {
    MutexLock lock(&mu_);
    for (const TensorJob& job : jobs)
      if (!job.absent && !job.work->enqueued()) EraseLocked(job.spec());
  }
  void Erase(const TensorSpec& spec) {
    MutexLock lock(&mu_);
    EraseLocked(spec);
  }

 private:
  using Key = std::pair<ProcessSetId, absl::string_view>;

  absl::Status InsertLocked(const TensorSpec& spec) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    auto refused = [&](auto... text) { return absl::StrCat("tensor ", spec.name, ": ", text...); };
    if (joined_) {
      return absl::FailedPreconditionError(
          refused("this rank has joined, expected nothing more until the join ends"));
    }
    if (names_.size() >= kMaxPendingTensors) {
      return absl::ResourceExhaustedError(
          refused(names_.size(), " tensors are pending, expected fewer"));
    }
    if (!names_.insert(Key(spec.process_set, spec.name)).second) {
      return absl::AlreadyExistsError(
          refused("a tensor of this name is still pending on this rank, expected a name of its own "
                  "or a wait for the first"));
    }
    joined_ = spec.kind == CollectiveKind::kJoin;
    return absl::OkStatus();
  }
  void EraseLocked(const TensorSpec& spec) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (spec.kind == CollectiveKind::kJoin) joined_ = false;
    names_.erase(Key(spec.process_set, spec.name));
  }

  // Guarded by mu_.
  Mutex mu_;
  absl::flat_hash_set<Key> names_ ABSL_GUARDED_BY(mu_);
  bool joined_ ABSL_GUARDED_BY(mu_) = false;  // a join of this rank is pending
};

}  // namespace coordd
