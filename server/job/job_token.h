// What a worker has to show to be taken into a job, and whose the job is.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "coordd/v1/records.pb.h"
#include "server/model/byte_budget.h"

namespace coordd {

// PURE. Not thread-safe. The first member's, until another one begins the job anew. Of a restored
// job only the hash is known, until somebody proves to have the token.
class JobToken {
 public:
  // `cluster_id` outlives it.
  JobToken(std::string job, const std::string& cluster_id)
      : job_(std::move(job)), cluster_id_(cluster_id) {}

  void Begin(absl::string_view token);
  void Restore(const v1::JobRecord& record) {
    hash_ = record.token_hash();
    owner_ = record.owner();
  }
  // What Restore reads.
  v1::JobRecord Record() const;
  // UNAUTHENTICATED: it is not the job's.
  absl::Status Check(absl::string_view token);
  // Whether there is one, and it is this.
  bool IsKnownBy(absl::string_view token) const;
  bool Is(absl::string_view token) const { return token_ == token; }  // known, and this one
  // ToString of the identity that has made the job; empty: without TLS, or not known.
  const std::string& owner() const { return owner_; }
  // What its jobs may take together; null: no limit.
  const std::shared_ptr<ByteBudget>& budget() const { return budget_; }
  void SetOwner(std::string owner, std::shared_ptr<ByteBudget> budget) {
    owner_ = std::move(owner);
    budget_ = std::move(budget);
  }

 private:
  bool IsRight(absl::string_view token) const;

  const std::string job_;
  const std::string& cluster_id_;
  std::string token_;
  std::string hash_;
  std::string owner_;
  std::shared_ptr<ByteBudget> budget_;
};

}  // namespace coordd
