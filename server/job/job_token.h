// What a worker has to show to be taken into a job.
#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace coordd {

// PURE. Not thread-safe. The first member's, until the job has ended. Of a restored job only the
// hash is known, until somebody proves to have the token.
class JobToken {
 public:
  // `cluster_id` outlives it.
  JobToken(std::string job, const std::string& cluster_id)
      : job_(std::move(job)), cluster_id_(cluster_id) {}

  void Begin(absl::string_view token);
  void Restore(std::string hash) { hash_ = std::move(hash); }
  // UNAUTHENTICATED: it is not the job's.
  absl::Status Check(absl::string_view token);
  bool Is(absl::string_view token) const { return token_ == token; }  // known, and this one
  const std::string& hash() const { return hash_; }                   // as it is stored

 private:
  const std::string job_;
  const std::string& cluster_id_;
  std::string token_;
  std::string hash_;
};

}  // namespace coordd
