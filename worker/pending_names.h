// The names of the tensors that have been submitted here and have not ended.
#pragma once

#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/mutex.h"

namespace coordd {

// Tensors that one worker may have open: what coordd keeps for a whole job is four times that.
inline constexpr size_t kMaxPendingTensors = size_t{1} << 18;

// Thread-safe: callers insert, the completion thread erases just before a Work completes, so that
// whoever waited for it may submit the name again.
class PendingNames {
 public:
  // ALREADY_EXISTS: a tensor of this name is pending. RESOURCE_EXHAUSTED: too many are.
  absl::Status Insert(const std::string& name) {
    MutexLock lock(&mu_);
    if (names_.size() >= kMaxPendingTensors) {
      return absl::ResourceExhaustedError(absl::StrCat("tensor ", name, ": ", names_.size(),
                                                       " tensors are pending, expected fewer"));
    }
    if (!names_.insert(name).second) {
      return absl::AlreadyExistsError(
          absl::StrCat("tensor ", name,
                       ": a tensor of this name is still pending on this rank, expected a name "
                       "of its own or a wait for the first"));
    }
    return absl::OkStatus();
  }

  void Erase(const std::string& name) {
    MutexLock lock(&mu_);
    names_.erase(name);
  }

 private:
  // Guarded by mu_.
  Mutex mu_;
  absl::flat_hash_set<std::string> names_ ABSL_GUARDED_BY(mu_);
};

}  // namespace coordd
