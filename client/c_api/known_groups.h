// The groups that a program has submitted, by name: as a rule it submits them again.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "common/base/mutex.h"
#include "worker/api/prepared_group.h"

namespace coordd {

// Thread-safe.
class KnownGroups {
 public:
  // The last one of this name; nullptr: none.
  std::shared_ptr<PreparedGroup> Find(absl::string_view name) const {
    MutexLock lock(&mu_);
    const auto found = groups_.find(name);
    return found == groups_.end() ? nullptr : found->second;
  }

  void Keep(std::shared_ptr<PreparedGroup> group) {
    MutexLock lock(&mu_);
    // A program that gives each group a name of its own recognises none of them.
    if (tensors_ >= kMaxTensors) {
      groups_.clear();
      tensors_ = 0;
    }
    tensors_ += group->specs().size();
    std::shared_ptr<PreparedGroup>& kept = groups_[group->name()];
    if (kept != nullptr) tensors_ -= kept->specs().size();
    kept = std::move(group);
  }

 private:
  static constexpr size_t kMaxTensors = size_t{1} << 17;  // some 250 bytes each

  // Guarded by mu_.
  mutable Mutex mu_;
  absl::flat_hash_map<std::string, std::shared_ptr<PreparedGroup>> groups_ ABSL_GUARDED_BY(mu_);
  size_t tensors_ ABSL_GUARDED_BY(mu_) = 0;  // of all of them
};

}  // namespace coordd
